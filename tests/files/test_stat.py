"""Size and time of files, and paths as bytes."""

import os

import pytest

from pml_ext.files.stat import MISSING, file_stat, path_bytes


def test_a_changed_file_has_another_stat(tmp_path):
    file = tmp_path / "one"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 1_700_000_000_123_456_789))
    assert file_stat(file) == (3, 1_700_000_000_123_456_789)
    os.utime(file, ns=(5, 1_700_000_000_123_456_790))  # within the same microsecond
    assert file_stat(file) == (3, 1_700_000_000_123_456_790)


@pytest.mark.parametrize("name", ["gone", "one/below", "zero\0byte", "x" * 5000])
def test_what_is_no_file_has_none(tmp_path, name):
    (tmp_path / "one").write_text("")
    assert file_stat(tmp_path / name) is None
    assert file_stat(tmp_path / "one") != MISSING


def test_a_path_need_not_be_text():
    assert path_bytes("a/b") == b"a/b"
    assert path_bytes("bad\udcff.png") == b"bad\xff.png"
    assert os.fsdecode(path_bytes("ä/中")) == "ä/中"

"""Size and time of files, and paths as bytes."""

import os

import pytest

from pml_ext_train.files.stat import MISSING, as_spelled, composed, doubt_about, file_stat, path_bytes


def test_a_changed_file_has_another_stat(tmp_path):
    file = tmp_path / "one"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 1_700_000_000_123_456_789))
    assert file_stat(file) == (3, 1_700_000_000_123_456_789)
    os.utime(file, ns=(5, 1_700_000_000_123_456_790))  # within the same microsecond
    assert file_stat(file) == (3, 1_700_000_000_123_456_790)


@pytest.mark.parametrize("name", ["gone", "one/below", "zero\0byte", "x" * 5000])
def test_a_missing_file_has_no_stat(tmp_path, name):
    (tmp_path / "one").write_text("")
    assert file_stat(tmp_path / name) is None
    assert file_stat(tmp_path / "one") != MISSING


def test_a_path_may_not_be_text():
    assert path_bytes("a/b") == b"a/b"
    assert path_bytes("bad\udcff.png") == b"bad\xff.png"
    assert os.fsdecode(path_bytes("ä/中")) == "ä/中"


def test_names_are_compared_as_people_read(tmp_path):
    one, two = "Zo\u00eb", "Zoe\u0308"
    assert composed(one) == composed(two) == one
    (tmp_path / two / "\u1100\u1161").mkdir(parents=True)
    assert as_spelled(tmp_path, f"{one}/\uac00/new.png") == f"{two}/\u1100\u1161/new.png"
    assert as_spelled(tmp_path, f"{one}/b/c") == f"{two}/b/c"
    assert as_spelled(tmp_path, "plain/x.png") == "plain/x.png"
    (tmp_path / one).mkdir()  # both are there
    assert as_spelled(tmp_path, f"{one}/x.png") == f"{one}/x.png"


def test_names_that_differ_in_case_are_doubtful():
    assert doubt_about(["Luna", "luna ", "Zoe"]).startswith(
        "the classes 'Luna' and 'luna ' differ only in case or blanks"
    )
    assert doubt_about(["Luna", "Luna", "Lunar", ""]) == ""

"""Free names, and files that are renamed to them."""

import os

import pytest

from pml_ext_train.files import moving
from pml_ext_train.files.moving import free_name, free_names, rename_file


def test_a_taken_name_gets_a_number(tmp_path):
    photo = tmp_path / "a.b.jpg"
    assert free_name(photo) == photo
    photo.touch()
    (tmp_path / "a.b-2.jpg").symlink_to("gone")  # a broken link also takes a name
    assert free_name(photo) == tmp_path / "a.b-3.jpg"


def test_files_of_one_stem_share_a_number(tmp_path):
    (tmp_path / "a.xmp").touch()
    (tmp_path / "a-2.jpg.xmp").touch()
    endings = [".jpg", ".xmp", ".jpg.xmp"]
    assert [path.name for path in free_names(tmp_path, "a", endings)] == ["a-3.jpg", "a-3.xmp", "a-3.jpg.xmp"]


def test_a_file_is_renamed_to_a_free_name(tmp_path, monkeypatch):
    source, target = tmp_path / "one", tmp_path / "two"
    source.write_bytes(b"one")

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(moving.os, "replace", fail)
        with pytest.raises(OSError, match="Input/output"):
            rename_file(source, target)
    assert os.listdir(tmp_path) == ["one"]
    for taken in (lambda: target.write_bytes(b"two"), lambda: target.symlink_to("gone"), target.mkdir):
        taken()
        assert not rename_file(source, target)
        assert source.read_bytes() == b"one"
        target.rmdir() if target.is_dir() else target.unlink()
    target.touch()  # of a killed call
    assert rename_file(source, target)
    assert (os.listdir(tmp_path), target.read_bytes()) == (["two"], b"one")

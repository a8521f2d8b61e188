"""Omniglot: its parts by alphabet and by character."""

import zipfile
import zlib

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import omniglot
from pml_ext_train.data.published import Count

from .made_up import omniglot_zip


def broken(*_):
    raise zlib.error("invalid block type")


@pytest.mark.parametrize(
    ("name", "factory", "files"),
    [
        ("ABOUT", omniglot.omniglot, (omniglot.BACKGROUND, omniglot.EVALUATION)),
        ("SMALL", omniglot.omniglot_small, (omniglot.TRAIN, omniglot.TEST)),
    ],
)
def test_omniglot_tests_on_unseen_alphabets(tmp_path, count, name, factory, files, monkeypatch):
    omniglot_zip(tmp_path / files[0], {"Greek": 3, "Latin": 2})
    omniglot_zip(tmp_path / files[1], {"Greek": 3, "Sanskrit": 4})
    with pytest.raises(DataError, match=r"expected (19,280|2,720) training images of .* classes, found 15 of 5"):
        factory(tmp_path)
    count(name, {"train": Count(15, 5), "test": Count(12, 4)}, omniglot)
    splits = factory(tmp_path, image_size=21)
    assert splits.test.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {name.partition("/")[0] for name in splits.train.class_names} == {"Greek", "Latin"}
    assert splits.test.class_names[0] == "Sanskrit/character01"
    image, _ = splits.test[0]
    assert tuple(image.shape) == (1, 21, 21)
    assert image[0, :3].min() == 255  # ink, drawn in the uppermost rows, is bright
    assert image[0, 5:].max() == 0
    assert (splits.image_size, splits.channels) == (21, 1)
    with pytest.raises(ConfigError, match="from 8 to 105 pixels, not 500"):
        factory(tmp_path, image_size=500)
    (tmp_path / files[1]).write_bytes(b"no zip")
    with pytest.raises(DataError, match=f"{files[1]}: not a readable zip"):
        factory(tmp_path)
    monkeypatch.setattr(zipfile.ZipFile, "read", broken)
    with pytest.raises(DataError, match=f"{files[0]}: not a readable zip of drawings .invalid block"):
        factory(tmp_path)
    (tmp_path / files[1]).unlink()
    with pytest.raises(DataError, match=f"has no {files[1]}"):
        factory(tmp_path)

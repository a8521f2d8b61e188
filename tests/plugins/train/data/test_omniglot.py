"""Omniglot: its parts by alphabet, and damaged archives."""

import zipfile
import zlib

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import omniglot
from pml_ext_train.data.published import Count

from .made_up import omniglot_zip

SETS = {
    "ABOUT": (omniglot.omniglot, omniglot.BACKGROUND, omniglot.EVALUATION),
    "SMALL": (omniglot.omniglot_small, omniglot.TRAIN, omniglot.TEST),
}


@pytest.fixture(params=SETS)
def archives(request, tmp_path, count):
    """Two small archives of a set: their factory, and the paths of both."""
    factory, first, second = SETS[request.param]
    omniglot_zip(tmp_path / first, {"Greek": 3, "Latin": 2})
    omniglot_zip(tmp_path / second, {"Greek": 3, "Sanskrit": 4})
    with pytest.raises(DataError, match=r"expected (19,280|2,720) training images of .* classes, found 15 of 5"):
        factory(tmp_path)
    count(request.param, {"train": Count(15, 5), "test": Count(12, 4)}, omniglot)
    return factory, tmp_path / first, tmp_path / second


def test_omniglot_tests_on_unseen_alphabets(archives, tmp_path):
    factory, _, _ = archives
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


def test_damaged_or_missing_archives_are_named(archives, tmp_path, monkeypatch):
    factory, first, second = archives

    def broken(*_):
        raise zlib.error("invalid block type")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "read", broken)
        with pytest.raises(DataError, match=f"{first}: not a readable zip .* .invalid block"):
            factory(tmp_path)
    second.write_bytes(b"no zip")
    with pytest.raises(DataError, match=f"{second}: not a readable zip"):
        factory(tmp_path)
    second.unlink()
    with pytest.raises(DataError, match=f"has no {second.name}"):
        factory(tmp_path)

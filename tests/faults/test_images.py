"""Damaged images, through everything that opens an image."""

import pytest
from PIL import Image

pytest.importorskip("torchvision")
from . import images


def test_damaged_images_are_read_or_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # the setting below changes it
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "1000000")  # headers that claim more are not worth the time
    wrong, outcomes = images.raw_errors(tmp_path, 71)
    assert wrong == []
    assert outcomes["read"] > 50
    assert outcomes["refused"] > 200

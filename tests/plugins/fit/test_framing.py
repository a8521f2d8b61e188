"""How images are shown to the trunk."""

import pytest

from pml_ext_fit.framing import DEFAULT, SMALL_SIDE, Framing, Framings, as_given, framing_of, framings_to_compare


@pytest.mark.parametrize(
    ("keys", "size", "aspect", "wanted"),
    [
        ((), None, 1.5, Framings((False, True), (160, 224))),
        ((), None, 1.0, Framings((False,), (160, 224))),
        (("data.image_size",), 96, 1.5, Framings((False, True), (96,))),
        (("data.images.squash",), None, 1.5, Framings((False,), (160, 224))),
        (("data.images.crop",), None, 1.5, Framings((False,), (224,))),
    ],
)
def test_what_the_command_leaves_open_is_compared(keys, size, aspect, wanted):
    assert framings_to_compare(DEFAULT, SMALL_SIDE, keys, size, aspect) == wanted


@pytest.mark.parametrize("framing", [DEFAULT, Framing(160, True)])
def test_settings_decide_the_framing_of_images(framing):
    assert framing_of(framing.settings) == framing


@pytest.mark.parametrize(
    ("framing", "settings", "wanted"),
    [
        (Framing(160, squash=True), {}, Framing(160, squash=True)),
        (Framing(160, squash=True), {"data.images.squash": False}, Framing(160)),
        (Framing(160), {"data.images.crop": 96, "data.images.squash": True}, Framing(96, squash=True)),
    ],
)
def test_a_framing_says_what_the_command_gives(framing, settings, wanted):
    assert as_given(framing, settings) == wanted

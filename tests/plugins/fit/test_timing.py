"""How long images take."""

import shutil

from pml_ext_fit import timing
from pml_ext_fit.candidates import SmallNetwork
from pml_ext_fit.images import describe_images

from ...overrides import typed
from ...training.made_up_photos import write_photos
from .helpers import training_files


def test_images_are_timed_as_the_options_say(tmp_path):
    write_photos(tmp_path / "photos" / "ALL", classes=4, each=6)
    overrides = typed(["data.classes=leaf"])
    small = SmallNetwork(describe_images(tmp_path / "photos", overrides))
    assert timing.seconds_per_image(small, overrides, "cpu", None) > 0


def test_broken_files_do_not_end_the_estimate(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    small = SmallNetwork(describe_images(place))
    files = training_files(place)
    for file in files[: timing.TIMED_IMAGES]:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None) > 0
    for file in files:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None) is None

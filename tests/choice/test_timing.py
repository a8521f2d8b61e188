"""How long images take."""

import shutil

from pml_ext.choice import timing

from ..overrides import typed
from ..training.made_up_photos import write_photos
from .helpers import small, training_files


def test_images_are_timed_as_the_options_say(tmp_path):
    write_photos(tmp_path / "photos" / "ALL", classes=4, each=6)
    overrides = ["data.classes=leaf"]
    assert timing.seconds_per_image(small(tmp_path / "photos", *overrides), typed(overrides), "cpu", None) > 0


def test_broken_files_do_not_end_the_estimate(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    candidate = small(place)
    files = training_files(place)
    for file in files[: timing.TIMED_IMAGES]:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(candidate, [], "cpu", None) > 0
    for file in files:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(candidate, [], "cpu", None) is None

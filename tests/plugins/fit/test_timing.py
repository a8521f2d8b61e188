"""How long images take."""

import shutil

import pytest

from pml_ext_fit import timing
from pml_ext_fit.candidates import last_blocks, small_network
from pml_ext_fit.images import describe_images
from pml_ext_train.recipe import build_dataset

from ...overrides import typed
from ..train.training.made_up_photos import write_photos
from .helpers import recipe_of, training_files, workplace


def test_images_are_timed_as_the_options_say(tmp_path):
    write_photos(tmp_path / "photos" / "ALL", classes=4, each=6)
    overrides = typed(["data.classes=leaf"])
    small = small_network(describe_images(tmp_path / "photos", overrides))
    each = timing.seconds_per_image(small, overrides, "cpu", None)
    assert min(each.reading, each.passing) > 0


def test_broken_files_do_not_end_the_estimate(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    small = small_network(describe_images(place))
    files = training_files(place)
    for file in files[: timing.TIMED_IMAGES]:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None).passing > 0
    for file in files:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None) is None


@pytest.mark.usefixtures("weights")
def test_training_from_activations_is_timed_by_a_batch(tmp_path, monkeypatch, images):
    """12 epochs of 20 iterations of one second."""
    candidate = last_blocks(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    half = splits.train.subset(range(36))
    batches = candidate.trial_settings(6, 0.5)
    run = workplace(tmp_path, typed(["schedule.epochs=12"])).run_of(candidate, splits, half, half, batches)
    assert timing.seconds_of_training(run) > 0
    assert all(parameter.grad is None for parameter in run.trunk.parameters())
    monkeypatch.setattr(timing, "_seconds", lambda compute: 1.0)
    assert timing.seconds_of_training(run) == pytest.approx(12 * 20)


def test_a_network_without_kept_activations_is_not_timed(tmp_path, images):
    candidate = small_network(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    run = workplace(tmp_path).run_of(candidate, splits, splits.train, splits.train, {})
    assert timing.seconds_of_training(run) is None


def test_remaining_time_follows_the_measured_pace(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    left = timing.TimeLeft({"features": 60, "trial": 120, "training": 180})
    assert (left.seconds(), left.seconds("training")) == (360, 180)
    now[0] += 120
    left.end("features")
    assert left.seconds() == pytest.approx(300 * (120 + 300) / (60 + 300))
    left.leave_out("training")
    assert left.seconds() == pytest.approx(120 * (120 + 120) / (60 + 120))
    assert str(left) == "; about 3 minutes left"
    now[0] += 240
    left.end("trial")
    assert left.seconds() == 0
    left = timing.TimeLeft({"framing": 4, "training": 300})
    now[0] += 20  # five times the estimate, of a step that tells little about the others
    left.end("framing")
    assert 300 < left.seconds() < 330
    assert str(timing.TimeLeft({})) == ""

"""How long everything takes, estimated before it begins."""

import pytest

from pml_ext_fit import duration
from pml_ext_fit.candidates import features_of_images
from pml_ext_fit.folds import folds_of
from pml_ext_fit.timing import PerImage
from pml_ext_fit.trunk import LITE0
from pml_ext_train.recipe import build_dataset

from .helpers import recipe_of, workplace


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.usefixtures("weights")
def test_the_whole_is_the_sum_of_the_steps(tmp_path, monkeypatch, trains, images):
    """72 images to train and 72 to test, and a training of ten minutes."""
    splits = build_dataset(recipe_of(features_of_images(images)).data, None)
    folds = folds_of(splits.train.labels, shared=False, seed=0)
    monkeypatch.setattr(duration, "seconds_per_image", lambda *_: PerImage(0.01, 0.03))
    monkeypatch.setattr(duration, "seconds_of_training", lambda run: 600.0)
    monkeypatch.setattr(duration, "REPORT", 0.0)
    left = duration.expected(images, LITE0, splits, folds, 72, workplace(tmp_path), trains)
    framing = 72 * (0.01 + 0.03 * ((160 / 224) ** 2 + 1))  # squares, in two sizes
    features = 72 * 0.04
    tests = 144 * 0.01 + 72 * 0.03
    closed = framing + features + tests
    trial = 600 if trains else 0  # the fewest iterations
    deeper = 600 + 72 * 0.03 if trains else 0  # with the activations before an earlier block
    assert left.seconds(duration.TRAINING, duration.DEPTH) == pytest.approx(closed + trial)
    assert left.seconds() == pytest.approx(closed + trial + deeper + 600 * trains)
    left.trains("frozen features")
    assert left.seconds() == pytest.approx(closed + trial + deeper)
    if trains:
        left.trains("last blocks from blocks.3")
        assert duration.described(left) == (
            "about 10 minutes to 30 minutes in all, depending on what is trained; trials take 320 steps a fold"
        )
    else:
        assert duration.described(left) == "about 10 s in all"


def test_without_readable_images_nothing_is_estimated(tmp_path, monkeypatch, images):
    monkeypatch.setattr(duration, "seconds_per_image", lambda *_: None)
    assert duration.expected(images, LITE0, None, None, 72, workplace(tmp_path), True) is None

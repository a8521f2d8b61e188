"""Runs that train the last blocks of a trunk from cached activations, next to runs that train from images."""

from collections import Counter

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import FeatureCache, Run, evaluate_split, open_run, train_run

from ....overrides import typed
from .whole_runs import SHORT, assert_close_networks, assert_the_same_when_resumed, finished

pytestmark = pytest.mark.usefixtures("without_report")
BLOCK = "4"  # of the convnet, the first layer of its second block
STEM = [str(layer) for layer in range(4)]
LIVE = f"model.freeze={STEM}".replace("'", '"')
PLAIN = "data.augment.shift=0"


def cut(precision="float32", **more):
    settings = {"until": BLOCK, "precision": precision, **more}
    return "model.freeze={" + ", ".join(f"{key}={value!r}" for key, value in settings.items()) + "}"


@pytest.mark.parametrize("frozen_norms", ["true", "false"])
def test_a_cut_equals_a_live_frozen_part(tmp_path, frozen_norms):
    settings = [PLAIN, "model.dropout=0.2", f"model.freeze_batch_norm={frozen_norms}"]
    live, metrics = finished(tmp_path / "live", *settings, LIVE)
    kept, same = finished(tmp_path / "cut", *settings, cut())
    assert_close_networks(live, kept, 1e-5)
    for phase in ("raw", "before", "after"):
        assert same[phase] == pytest.approx(metrics[phase], abs=1e-6), phase


def test_float16_is_within_its_rounding(tmp_path):
    few = [PLAIN, "schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=3"]
    exact, _ = finished(tmp_path / "exact", *few, cut())
    rounded, _ = finished(tmp_path / "rounded", *few, cut("float16"))
    for state in (exact, rounded):  # before batch norm, a bias has the gradient of rounding alone
        del state["trunk"][f"{BLOCK}.bias"]
    assert_close_networks(exact, rounded, 5e-3)
    assert any(not torch.equal(value, rounded["trunk"][name]) for name, value in exact["trunk"].items())


def test_a_resumed_run_has_equal_bits(tmp_path):
    settings = [cut("float16"), "model.views=2", "schedule.name=constant", "schedule.milestones=[]"]
    settings += ["evaluation.validation=0.3", "evaluation.select=map_at_r", "sampler.batch_size=40"]
    assert_the_same_when_resumed(tmp_path, *settings)


def test_a_stage_of_the_head_alone_keeps_features(tmp_path, monkeypatch):
    passes = []
    real = FeatureCache.of
    monkeypatch.setattr(FeatureCache, "of", lambda *given: passes.append(given) or real(*given))
    stage = '[{epochs=2, loss={name="cbml"}, freeze={until="head", precision="float32"}}]'
    staged = [PLAIN, f"stages={stage}", "schedule.milestones=[4]", "model.freeze_batch_norm=true"]
    recipe = load_recipe("cbml/digits", typed([*SHORT, *staged]))
    run = Run(recipe, "cbml/digits", tmp_path)
    first, last = run.stages
    assert isinstance(run.inputs.trained_trunk(first), torch.nn.Identity)
    assert run.inputs.trained_trunk(last) is run.trunk
    weights = [run.trunk[0].weight.detach().clone()]  # and after each epoch
    monkeypatch.setattr(
        "pml_ext_train.training.loop.validate", lambda *_: weights.append(run.trunk[0].weight.detach().clone())
    )
    train_run(run, finish=lambda *_: {})
    # The features of all training images, once, and those of the tested images for the test before the training.
    assert [len(images) for _, images, *_ in passes] == [len(run.images("train")), len(run.images("test"))]
    assert torch.equal(weights[2], weights[0])
    assert not torch.equal(weights[3], weights[0])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            [cut(gigabytes=1e-6)],
            r"need .* KB .* above 1e-06 GB. Cut at a later block, use fewer model.views, .* model.freeze.gigabytes=1$",
        ),
        (['model.freeze={until="7x"}'], "no block of the trunk '7x'"),
        (['model.freeze={until="4", gigabyte=1}'], "no key 'gigabyte'"),
        ([cut(), "model.trunk.weights=random", "model.init=other"], "features are cached for pretrained trunks only"),
        (["model.views=2"], "goes with freeze = 'trunk' or a cut"),
        (
            ['stages=[{epochs=1, loss={name="cbml"}}, {epochs=1, loss={name="cbml"}, freeze={until="4"}}]'],
            "stages with a cut come first",
        ),
        (['model.freeze="trunk"', 'stages=[{epochs=1, loss={name="cbml"}, freeze={until="4"}}]'], "goes without"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", overrides=typed([*SHORT, *settings]), out=tmp_path / "run")


def test_images_pass_through_the_stem_once(tmp_path, monkeypatch):
    """Whitening, and the tests before and after the training, share one pass over all images."""
    passed = Counter()
    runs = []

    class Counted(Run):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self.trunk[0].register_forward_hook(lambda module, given, output: passed.update(stem=len(output)))
            runs.append(self)

    monkeypatch.setattr("pml_ext_train.launch.launch.Run", Counted)
    settings = [PLAIN, cut("float16"), "model.start=within-class", "model.refit=within-class"]
    settings += ["model.embedding_size=16", "evaluation.training_images=5000", "model.freeze_batch_norm=true"]
    _, metrics = finished(tmp_path / "run", *settings)
    sizes = {name: len(images) for name, images in runs[0].splits.items()}
    probe = 1  # of the shape of activations
    assert passed["stem"] == sizes["train"] + sizes["test"] + probe
    view = open_run(tmp_path / "run", 0, "cpu")
    assert view.cut is None  # it looks at images
    for split, phase, close in (("test", "after", 1e-9), ("train", "training", 2e-3)):
        found = evaluate_split(view, split)["map_at_r"]
        assert found == pytest.approx(metrics[phase]["map_at_r"], abs=close)

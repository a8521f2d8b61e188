"""Frozen trunks beside each other: the table, the files, and nothing finished is done again."""

import csv
import json
import tomllib
from unittest.mock import Mock

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_compare.probing import ProbeOptions, probe
from pml_ext_train.training.loop import train_run

from ...overrides import typed
from ..train.training.made_up_photos import write_photos

TRUNKS = ("convnet=random", "mlp=random")
QUICK = ["schedule.epochs=1", "sampler.iterations=3", "sampler.batch_size=20", "data.images.crop=16"]


@pytest.mark.usefixtures("without_report")
def test_trunks_with_and_without_heads(tmp_path, monkeypatch):
    write_photos(tmp_path / "photos", classes=10, each=5)
    out = tmp_path / "out"
    train = Mock(wraps=train_run)
    monkeypatch.setattr("pml_ext_train.launch.launch.train_run", train)
    for seeds, begun in ((1, 4), (1, 4), (2, 6)):
        photos = f"folder:{tmp_path / 'photos'}"
        found = probe(TRUNKS, ProbeOptions(photos, out, "cbml/frozen", seeds, "cpu", overrides=typed(QUICK)))
        assert train.call_count == begun
        assert [(each.trunk, each.gain["nmi"]["pairs"]) for each in found] == [(trunk, seeds) for trunk in TRUNKS]
    for each, about in zip(found, json.loads((out / "probe.json").read_text())["trunks"], strict=True):
        runs = [json.loads((out / folder / "metrics.json").read_text()) for folder in each.folders[1:]]
        for metric in ("recall_at_1", "map_at_r", "nmi"):
            for row, phase in (("frozen", "frozen"), ("pca", "pca"), ("head", "after")):
                mean = sum(run[phase][metric] for run in runs) / 2
                assert about["metrics"][row][metric]["mean"] == pytest.approx(mean)
            gain = sum(run["after"][metric] - run["frozen"][metric] for run in runs) / 2
            assert about["gain"][metric]["mean"] == pytest.approx(gain)
    with (out / "probe.csv").open() as file:
        assert [(row["trunk"], row["row"]) for row in csv.DictReader(file)] == [
            (trunk, row) for trunk in TRUNKS for row in ("frozen", "pca", "head")
        ]
    assert "<h2>convnet=random</h2>" in (out / "probe.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_overrides_of_a_head_are_for_the_head(tmp_path):
    of_head = ["loss.mvc_weight=2", "model.norm=batch", "model.hidden_sizes=[4]", "model.dropout=0.1"]
    options = ProbeOptions("digits", tmp_path / "out", "cbml/frozen", overrides=typed([*QUICK, *of_head]))
    (found,) = probe(["mlp=random"], options)
    assert set(found.metrics) == {"frozen", "pca", "head"}
    recipe = tomllib.loads((tmp_path / "out" / found.folders[1] / "recipe.toml").read_text())
    assert (recipe["loss"]["mvc_weight"], recipe["model"]["norm"]) == (2, "batch")


REFUSED = [
    (
        "convnet",
        "data.images.crop=16",
        None,
        "convnet is frozen and has no weights.*'random' if that is meant",
    ),
    ("timm/darknet17", "data.images.crop=16", None, "timm/darknet17: timm has no weights for it, so its features"),
    ("mlp=random", "model.norm=batch", None, "--set model.norm=batch: it is for a head; add --head RECIPE"),
    ("mlp=random", "evaluation.baselines=false", None, "evaluation.baselines: found false, and a probe compares the"),
    ("mlp=random", "evaluation.baselines=false", "cbml/frozen", "evaluation.baselines: found false, and a probe"),
    ("mlp=random", "schedule.epochs=1", "cbml/omniglot-small-mvc-weight", "has 4 variants; wanted one of them"),
]


@pytest.mark.parametrize(("trunk", "setting", "head", "text"), REFUSED)
def test_what_cannot_be_probed_is_refused_at_once(tmp_path, trunk, setting, head, text):
    if trunk.startswith("timm/"):
        pytest.importorskip("timm", reason="the extra timm is not installed")
    with pytest.raises(ConfigError, match=text):
        probe(["mlp=random", trunk], ProbeOptions("digits", tmp_path / "out", head, overrides=typed([setting])))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_report")
def test_few_classes_are_enough_for_features(tmp_path):
    """Two classes train, fewer than any recipe's batch has; unchanged features need no batch."""
    write_photos(tmp_path / "photos", classes=4, each=4)
    settings = ["data.image_size=16", "model.embedding_size=2"]
    options = ProbeOptions(f"folder:{tmp_path / 'photos'}", tmp_path / "out", overrides=typed(settings))
    (found,) = probe(["mlp=random"], options)
    assert 0 < found.metrics["frozen"]["recall_at_1"]["mean"] <= 1
    assert probe(["mlp=random"], options)[0].metrics == found.metrics
    next((tmp_path / "photos" / "class-03").iterdir()).unlink()
    with pytest.raises(DataError, match="the images have changed since the run began: .*Restore them"):
        probe(["mlp=random"], options)

"""What a run tests: queries in a gallery, samples of training images, curves over epochs, the file of neighbors."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pml_ext import RetrievalAccuracyCalculator, registry
from pml_ext.plugin import RunView
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.launch import draw_report, train
from pml_ext_train.records.series import metric_series
from pml_ext_train.training.evaluation import nearest
from pml_ext_train.training.run import Run

from ..overrides import typed

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")
BARE = ("evaluation.baselines=false", "evaluation.training_images=0")
SHOP = """
    import torch
    from pml_ext.plugin import DataSplits, LabeledImages, hookimpl

    def shop(root=None):
        names = [f"item {number}" for number in range(20)]
        generator = torch.Generator().manual_seed(0)

        def part(count, first, classes):
            labels = torch.arange(count) % classes + first
            noise = torch.randint(160, (count, 1, 8, 8), generator=generator)
            return LabeledImages((noise + 4 * labels[:, None, None, None]).byte(), labels, names, channels=1)

        parts = {"query": part(33, 10, 6), "gallery": part(57, 12, 8)}  # nothing in the gallery is of items 10 and 11
        return DataSplits(part(160, 0, 10), **parts, image_size=8, channels=1)

    @hookimpl
    def pml_ext_datasets():
        return {"shop": shop}
"""


@pytest.fixture(autouse=True)
def projected(monkeypatch) -> list[list[str]]:
    """The panels of every projection that a report would draw; t-SNE takes most of a report's time."""
    drawn: list[list[str]] = []

    def projections(parts, *_, **__):
        drawn.append(list(parts))
        return Figure()

    monkeypatch.setattr("pml_ext_train.report.figures.projections", projections)
    return drawn


@pytest.fixture
def shop(install_plugin):
    """A plugin that is found by its entry point, with a data set that has queries and a gallery."""
    with registry.isolated():
        install_plugin("shop_plugin", SHOP, entry_point="shop")
        yield


@pytest.fixture
def runs(monkeypatch) -> list[Run]:
    """The runs that a test makes."""
    made: list[Run] = []

    class Kept(Run):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            made.append(self)

    monkeypatch.setattr("pml_ext_train.launch.launch.Run", Kept)
    return made


def quick(out: Path, *overrides: str) -> dict:
    return train("cbml/digits", out=out, overrides=typed((*QUICK, *overrides)), device="cpu")[0]


def directions(run, split):
    return torch.nn.functional.normalize(run.embeddings(split))


@pytest.mark.usefixtures("shop")
def test_queries_are_searched_in_the_gallery(tmp_path, runs):
    data = ("data.name=shop", "data.augment={}", "sampler={name='shuffle', batch_size=40, iterations=4}")
    tests = ("evaluation.recall_at=[1, 10, 100]", "evaluation.training_images=50", "evaluation.test_every=2")
    metrics = quick(tmp_path / "out", *data, *tests)
    run = runs[0]
    assert isinstance(run, RunView)
    assert list(run.splits) == ["query", "gallery", "train", "train_sample"]
    assert metrics["images"] == {
        "query": {"images": 33, "classes": 6},
        "gallery": {"images": 57, "classes": 8},
        "train": {"images": 160, "classes": 10},
        "train_sample": {"images": 50, "classes": 4},
    }
    labels = run.labels("query")
    others = run.labels("gallery")
    assert (len(run.embeddings("query")), len(run.embeddings("gallery"))) == (len(labels), len(others)) == (33, 57)
    names = ("recall_at_1", "recall_at_10", "recall_at_100", "precision_at_1")
    calculator = RetrievalAccuracyCalculator(names, recall_at=(1, 10, 100))
    wanted = calculator.evaluate(directions(run, "query"), labels, directions(run, "gallery"), others, keep=8)
    assert {name: metrics["after"][name] for name in names} == pytest.approx(wanted.accuracies)
    assert wanted.accuracies["recall_at_100"] == 1
    assert metrics["queries"]["recall_at_1"] == int((labels >= 12).sum())  # the others are lone
    of_sample = calculator.get_accuracy(directions(run, "train_sample"), run.labels("train_sample"))
    assert {name: metrics["training"][name] for name in names} == pytest.approx(of_sample)

    held = nearest(run, "query")
    for name in ("indices", "right", "relevant", "distances"):
        torch.testing.assert_close(getattr(held, name), getattr(wanted, name), rtol=1e-3, atol=0)

    epochs, values = metric_series(tmp_path / "out", "recall_at_1")["accuracies_test_by_epoch"]
    assert epochs == [2, 3]
    assert values[-1] == metrics["after"]["recall_at_1"]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Every query is searched in the gallery" in report
    assert "could not be drawn" not in report
    (tmp_path / "out" / "report.html").unlink()
    draw_report(tmp_path / "out", "cpu")
    drawn = [re.sub(r"figures [\d.]+ s", "", text) for text in (report, (tmp_path / "out" / "report.html").read_text())]
    assert drawn[0] == drawn[1]


def test_a_curve_on_the_test_images_chooses_nothing(tmp_path, projected):
    """Nor does a test that is left out change a number, or read an image."""
    read = []
    item = LabeledImages.__getitem__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabeledImages, "__getitem__", lambda images, index: read.append(1) or item(images, index))
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        bare = quick(tmp_path / "bare", *BARE)
    assert {"raw", "before", "training"} & set(bare) == set()
    assert len(read) == 3 * 4 * 80 + bare["images"]["test"]["images"]
    curve = quick(tmp_path / "curve", *BARE, "evaluation.test_every=1")
    assert curve["after"] == bare["after"]
    assert curve["best_epoch"] == 3
    epochs, values = metric_series(tmp_path / "curve", "map_at_r")["accuracies_test_by_epoch"]
    assert epochs == [1, 2, 3]
    chosen = quick(tmp_path / "chosen", *BARE, "evaluation.select=map_at_r", "evaluation.select_on=test")
    assert chosen["best_epoch"] == 1 + int(np.argmax(values))
    assert chosen["after"]["map_at_r"] == max(values)
    assert metric_series(tmp_path / "chosen", "map_at_r") == {"accuracies_test_by_epoch": (epochs, values)}
    report = (tmp_path / "chosen" / "report.html").read_text()
    assert "chosen by MAP@R on the test images" in report
    assert "([evaluation] select_on = &#34;test&#34;), so that the numbers after training are too good" in report
    other = (tmp_path / "curve" / "report.html").read_text().partition("<details>")[0]
    assert not [text for text in ("select_on", "column of the training", "raw pixels") if text in other]
    assert projected == [["after training"]] * 2

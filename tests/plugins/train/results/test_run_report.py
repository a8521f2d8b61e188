"""The metrics, report and figures of a run, what they say of it in words, and what is written again."""

import base64
import html
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import DataError, registry
from pml_ext_train.files.checksums import changed_files, missing_files
from pml_ext_train.launch.launch import draw_report, train
from pml_ext_train.recipe import load_recipe, load_recipes
from pml_ext_train.recipe.schema import EvaluationTable
from pml_ext_train.records import read_metrics
from pml_ext_train.report import render
from pml_ext_train.results.figures import _as_bytes, figures_of_run
from pml_ext_train.results.run_report import _cells, metrics_table
from pml_ext_train.results.verdict import PHASES, better_features, setback, verdict
from pml_ext_train.training import open_run

from ....overrides import typed
from ..training.whole_runs import QUICK, Ear, quick

METRICS = [*(f"recall_at_{k}" for k in (1, 10, 100)), "precision_at_1", "r_precision", "map_at_r", "nmi", "ncm_top_1"]
MEASURE = """<script>const frame = document.querySelector("iframe"); frame.onload = () => {
document.title = [...frame.contentDocument.querySelectorAll(".scroll")].map(e => e.scrollWidth - e.clientWidth)
}</script>"""


def test_the_smallest_error_rate_is_the_best_value():
    metrics = {
        "before": {"verification_eer": 0.3, "verification_roc_auc": 0.6},
        "after": {"verification_eer": 0.1, "verification_roc_auc": 0.9},
        "training": {"verification_eer": 0.0, "verification_roc_auc": 1.0},
    }
    phases = ["before", "after", "training"]
    assert _cells(metrics, "verification_eer", phases) == ["30.0", "<b>10.0</b>", "0.0"]
    assert _cells(metrics, "verification_roc_auc", phases) == ["60.0", "<b>90.0</b>", "100.0"]


@pytest.mark.parametrize(("width", "phases"), [(390, ["raw", "before", "after", "training"]), (1280, [*PHASES])])
def test_no_number_in_a_table_is_cut(tmp_path, width, phases):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser")
    view = SimpleNamespace(
        queries="test",
        data=SimpleNamespace(noun="images", has_vectors=False, listed=None, tested_training="train"),
        recipe=SimpleNamespace(evaluation=EvaluationTable(recall_at=[1, 10, 100])),
        frozen=False,
        relation=None,
    )
    metrics = {phase: dict.fromkeys(METRICS, number / 10) for number, phase in enumerate(phases)}
    page = html.escape(render("report", title="a", tables=[metrics_table(view, metrics)], phases={"train": 1.0}))
    (tmp_path / "page.html").write_text(f'<iframe width="{width}" height="900" srcdoc="{page}"></iframe>{MEASURE}')
    call = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=3000",
        "--dump-dom",
        f"file://{tmp_path}/page.html",
    ]
    assert "<title>0</title>" in subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout


# What is written, and when


@pytest.mark.nightly
def test_a_setback_is_printed_and_in_the_report(tmp_path, pml_ext_command):
    settings = [*QUICK, "optimizer.lr=3", "evaluation.figures=few", "evaluation.training_images=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    printed = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "run", "--device", "cpu", *options).stdout
    text = "The trained network is behind the raw pixels: Recall@1 is "
    assert text in printed
    assert text in (tmp_path / "run" / "report.html").read_text()
    assert "recall_at_1" not in printed


@pytest.mark.slow
def test_metrics_are_written_before_the_report(tmp_path, monkeypatch):
    drawn = []

    monkeypatch.setattr(
        "pml_ext_train.results.finish.write_run_report", Mock(side_effect=OSError("no space left on device"))
    )
    with pytest.raises(OSError, match="no space left"):
        quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]")
    written = read_metrics(tmp_path / "out" / "metrics.json")
    left = [tmp_path / "out" / name for name in (".SHA256SUMS.1-1.tmp", "records/.loss_histories.csv.1-1.tmp")]
    for path in left:  # as a process leaves them that is killed while it writes the report
        path.write_text("half of it")
    monkeypatch.setattr("pml_ext_train.results.finish.write_run_report", lambda *given: drawn.append(given[2]))
    resumed = quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]", resume=True)
    assert drawn == [written]
    assert {key: value for key, value in resumed.items() if key not in ("folder", "verdict")} == written
    assert not any(path.exists() for path in left)


@pytest.mark.nightly
def test_lost_files_are_written_without_failing_figures(finished, tmp_path, monkeypatch):
    fails = Mock(side_effect=ValueError("bins must increase\nmonotonically"))
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    (out / "report.html").unlink()
    gone = [out / "network.json", next((out / "records").glob("*.csv"))]
    whole = [path.read_bytes() for path in gone]
    for path in gone:
        path.unlink()
    (out / "checkpoints" / "previous.pt").unlink()  # which may be deleted, and says nothing
    (out / "checkpoints" / "last.pt").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    monkeypatch.setattr("pml_ext_train.report.figures.similarity_distributions", fails)
    drawn_with = registry.get("cbml", "loss").cls  # a plugin that was loaded again has another class
    monkeypatch.setattr(drawn_with, "figures", lambda *_: sys.exit("no more"), raising=False)
    assert draw_report(out, "cpu", listener=ear) == out / "report.html"
    after = {path.name: path.read_bytes() for path in (out / "figures").glob("*.png")}
    assert set(before) - set(after) == {"similarities-of-positive-and-negative-pairs.png"}  # no stale picture is left
    assert after == {name: before[name] for name in after}  # and the others are as they were
    report = (out / "report.html").read_text()
    shown = [base64.b64encode(after[name]).decode() for name in after]  # that of CBML is of the earlier report
    assert sum(f"data:image/png;base64,{picture}" in report for picture in shown) == len(after) - 1
    assert report.count("This figure could not be drawn: ") == 2
    assert "This figure could not be drawn: ValueError: bins must increase</div>" in report
    assert [text.partition("; ")[0] for text in ear.warnings] == [
        f"{out}: damaged or changed, according to SHA256SUMS: checkpoints/last.pt, network.json, "
        f"records/{gone[1].name}",
        "the figure 'Similarities of positive and negative pairs' is left out of the report: "
        "ValueError: bins must increase",
        "the figure 'Figures of CBMLLoss' is left out of the report: SystemExit: no more",
    ]
    assert [path.read_bytes() for path in gone] == whole
    assert (changed_files(out), missing_files(out)) == (["checkpoints/last.pt"], [])
    with pytest.raises(DataError, match=r"no finished run \(no recipe.toml in it\); type: pml-ext train RECIPE --out"):
        draw_report(tmp_path)


# Queries without an answer


def run_on(folder, tested):
    """Train a small network on made-up images and test it on classes of so many; return its metrics and report."""
    generator = np.random.default_rng(0)
    for part, sizes in (("train", [6] * 8), ("test", tested)):
        for number, size in enumerate(sizes):
            place = folder / "images" / part / f"{part}{number:02}"
            place.mkdir(parents=True)
            center = generator.uniform(0, 150, size=(8, 8))
            for image in range(size):
                Image.fromarray((center + generator.uniform(0, 100, size=(8, 8))).astype(np.uint8)).save(
                    place / f"{image}.png"
                )
    quick = ["schedule.epochs=1", "sampler.batch_size=32", "sampler.iterations=2", "data.image_size=8"]
    train("cbml/digits", folder / "run", overrides=typed([f"data.name=folder:{folder / 'images'}", *quick]))
    return json.loads((folder / "run" / "metrics.json").read_text()), (folder / "run" / "report.html").read_text()


def test_queries_without_an_answer_are_not_counted(tmp_path):
    metrics, report = run_on(tmp_path, [7] * 7 + [1] * 9)
    assert metrics["images"]["test"] == {"images": 58, "classes": 16}
    assert metrics["without_answer"] == {"queries": 9, "classes": [f"test{number:02}" for number in range(7, 16)]}
    assert metrics["queries"]["recall_at_1"] == metrics["queries"]["precision_at_1"] == 49
    assert metrics["queries"]["nmi"] == 58
    assert metrics["blank"] == {}
    recall = metrics["after"]["recall_at_1"]
    assert recall == metrics["after"]["precision_at_1"]
    assert (recall * 49) == pytest.approx(round(recall * 49))
    by_class = [*metrics["recall_at_1_by_class"].values()]
    assert (by_class, len(by_class)) == (sorted(by_class), 7)
    headline = report.split('<p class="headline">')[1].split("</p>")[0]
    assert f"is right for {100 * recall:.0f}\N{NO-BREAK SPACE}% of the 49 queries that have a right answer" in headline
    assert (
        "9 of 58 queries have none and are not counted: classes test07, test08, test09, test10, test11, ..." in headline
    )
    assert "Shares are over different numbers: " in report


@pytest.mark.parametrize(
    ("tested", "reason", "of_clusters"),
    [
        (
            [1] * 12,
            "none of the 12 queries has another item of its class in the gallery",
            "12 clusters of 12 queries have one each",
        ),
        ([8], "every item of the gallery is right", "all 8 queries have one class, so that no cluster can be wrong"),
    ],
)
def test_tests_that_measure_nothing_are_blank(tmp_path, tested, reason, of_clusters):
    metrics, report = run_on(tmp_path, tested)
    assert all(math.isnan(value) for value in metrics["after"].values())
    assert of_clusters in metrics["blank"]["nmi"]
    warned = " ".join(metrics["warnings"])
    for text in ("Recall@1", reason, of_clusters):
        assert text in warned
    assert f"nothing can be said about the nearest image: {reason}" in report
    assert "<td>nan" not in report


# Figures


TITLES = [
    "Recall@K before and after training",
    "Similarities of positive and negative pairs",
    "The embeddings of test images in two dimensions: t-SNE",
    "Queries and their nearest test images",
    "Training images as the network saw them",
]


def test_few_figures_are_drawn_on_request(finished):
    view = open_run(finished[0], 0, "cpu")
    drawn = list(figures_of_run(view, [], finished[1]))
    assert [figure.title for figure in drawn] == ["The loss and its terms", *TITLES]
    assert not any(figure.problem for figure in drawn)
    view.recipe.evaluation.figures = "few"
    assert [figure.title for figure in figures_of_run(view, [], finished[1])] == [
        "The loss and its terms",
        TITLES[1],
        TITLES[3],
    ]


def test_inputs_are_shown_from_black_to_white():
    assert _as_bytes(torch.tensor([[-2.0, 0.0, 2.0]])).tolist() == [[0, 127, 255]]
    assert _as_bytes(torch.full((1, 2), 7.0)).tolist() == [[0, 0]]  # of one value


# In words


FROZEN = ("model.freeze=trunk", "model.trunk.weights=random")
BY_MAP = ("evaluation.select=map_at_r", "evaluation.validation=0.5")
BEHIND = "The trained network is behind the"


@pytest.mark.parametrize(
    ("overrides", "recalls", "text"),
    [
        ((), {"before": 0.421, "after": 0.373}, f"{BEHIND} untrained network: Recall@1 is 37.3 %, and 42.1 % before "),
        ((), {"before": 0.3, "after": 0.3}, ""),
        ((), {"after": 0.3}, ""),
        ((), {"before": 0.1, "frozen": 0.421, "after": 0.373}, f"{BEHIND} frozen trunk: Recall@1 is 37.3 %"),
        ((), {"frozen": 0.3, "after": 0.4}, f"{BEHIND} frozen trunk: MAP@R is 60.0 %, and 70.0 % before training."),
        (BY_MAP, {"before": 0.421, "after": 0.373}, ""),
        (BY_MAP, {"before": 0.373, "after": 0.421}, f"{BEHIND} untrained network: MAP@R is 57.9 %, and 62.7 % before "),
        (FROZEN, {"frozen": 0.9, "after": 0.8}, "The head is behind the frozen trunk: "),
        ((*FROZEN, "model.embedder=none"), {"frozen": 0.9, "after": 0.8}, ""),  # nothing is learned
        (
            (*FROZEN, "model.embedder=pca"),
            {"frozen": 0.9, "after": 0.8},
            "The frozen trunk, PCA is behind the frozen trunk: Recall@1 is 80.0 %, and 90.0 % without whitening.",
        ),
    ],
)
def test_a_network_behind_its_start_is_named(overrides, recalls, text):
    recipe = load_recipe("cbml/digits", typed(overrides))
    found = setback(recipe, {phase: {"recall_at_1": value, "map_at_r": 1 - value} for phase, value in recalls.items()})
    assert found.startswith(text)
    assert bool(found) is bool(text)


def test_a_network_that_is_not_compared_is_named():
    def said(*overrides):
        (recipe,) = load_recipes(
            "cbml/digits", typed([*overrides, "model.trunk.weights=some.pth"]), check=False
        ).values()
        return verdict(recipe, {"after": {"recall_at_1": 0.5, "map_at_r": 0.4}}, Path("run"))

    quick = "evaluation.baselines=false"
    assert said(quick).startswith("The tests before training were skipped, so the network may be worse than ")
    assert said(quick, "model.freeze=trunk", "model.embedder=none") == said() == ""


@pytest.mark.parametrize(
    ("recalls", "text"),
    [
        (
            {"frozen": 0.3, "before": 0.2, "head": 0.4, "after": 0.5},
            "Training the whole network has paid: Recall@1 is 50.0 % after it; head, trunk frozen 40.0 %, frozen trunk "
            "30.0 %.",
        ),
        ({"blocks": 0.4, "after": 0.4}, "Training the whole network has added nothing: Recall@1 is 40.0 % after it; "),
        (
            {"frozen": 0.3, "before": 0.2, "blocks": 0.4, "after": 0.35},
            f"{BEHIND} last blocks: Recall@1 is 35.0 %, and 40.0 % before the whole network trained. Train without its "
            "last stage (in pml-ext fit, without --fine-tune) to keep that.",
        ),
        (
            {"frozen": 0.3, "pca": 0.6, "before": 0.2, "head": 0.4, "after": 0.5},
            f"{BEHIND} frozen trunk, PCA: Recall@1 is 50.0 %, and 60.0 %",
        ),
        (
            {"frozen": 0.6, "before": 0.2, "head": 0.4, "after": 0.5},
            f"{BEHIND} frozen trunk: Recall@1 is 50.0 %, and 60.0 % before training.",
        ),
    ],
)
def test_what_the_whole_network_adds_is_said(recalls, text):
    assert verdict(
        load_recipe("cbml/digits"), {phase: {"recall_at_1": value} for phase, value in recalls.items()}, Path("run")
    ).startswith(text)


def test_pairs_behind_the_untrained_head_are_named():
    (recipe,) = load_recipes(
        "fit/vectors", {"data.name": "pairs:mine.csv", "data.vectors": "a.npz"}, check=False
    ).values()
    text = "The trained head is behind the raw vectors: ROC AUC of pairs is 80.0 %, and 90.0 % before training."
    assert setback(recipe, {"raw": {"verification_roc_auc": 0.9}, "after": {"verification_roc_auc": 0.8}}).startswith(
        text.replace("trained head", "head")
    )


def test_features_ahead_of_the_embeddings_are_told():
    phases = {"after": {"recall_at_1": 0.5}, "features": {"recall_at_1": 0.6}}
    recipe = load_recipe("cbml/digits", {"data.name": "folder:my photos"})

    def told(phases):
        return better_features(phases, Path("a run"), recipe)

    assert told(phases) == (
        "The features before the head are better than the embeddings: Recall@1 is 60.0 % instead of 50.0 %. "
        "To search by them, type: pml-ext index 'a run' 'my photos' --by features"
    )
    assert told({**phases, "after": {"recall_at_1": 0.6}}) == ""
    assert told({"after": {"recall_at_1": 0.5}}) == ""
    metrics = {"after": {"recall_at_1": 0.6, "map_at_r": 0.2}, "features": {"recall_at_1": 0.5, "map_at_r": 0.3}}
    assert " embeddings: MAP@R is 30.0 % instead of 20.0 %. To search by them, type: pml-ext index" in told(metrics)

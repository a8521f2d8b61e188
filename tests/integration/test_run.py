"""Whole runs: what is written, tested and resumed, on digits and on lists; failures; what a step does."""

import copy
import math
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from benchmarks.step_overhead import TOGETHER, bare_epoch, epoch_of_a_run, of_a_step, operators_of, reads_of
from pml_ext import RetrievalAccuracyCalculator, load_run, registry
from pml_ext.errors import ConfigError, DataError
from pml_ext.plugin import RunView
from pml_ext_train.data import LabeledImages
from pml_ext_train.files import read_json
from pml_ext_train.files.checksums import changed_files
from pml_ext_train.launch.launch import FailedRunsError, draw_report, train
from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import load_recipe
from pml_ext_train.records import loss_series, metric_series, summarize
from pml_ext_train.training import Run, checkpoint, engine, nearest, train_run

from ..digit_files import write_digits
from ..overrides import typed
from ..plugins.train.training.whole_runs import QUICK, quick


@pytest.mark.nightly
def test_an_existing_folder_is_refused_and_left_alone(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for overrides, settings, text in (
        ([], {}, "exists; add --resume"),
        (["loss.mvc_weight=0.5"], {"resume": True}, r"loss.mvc_weight is 1.0 in the run to resume, but 0.5 now"),
        ([], {"seed": 1, "resume": True}, "seed 0, not 1; type --seed 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            quick(out, *overrides, **settings)
    quick(out, resume=True)  # finished: only read
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


@pytest.mark.usefixtures("without_report")
def test_several_seeds_and_variants_are_summarized(tmp_path):
    out = tmp_path / "seeds"
    out.mkdir()
    (out / ".summary.json.4194305.tmp").write_text("half")  # of a process that was killed
    results = train("cbml/digits", out=out, seeds=2, overrides=typed(QUICK), device="cpu", resume=True)
    assert [result["seed"] for result in results] == [0, 1]
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-1", "summary.json"}
    summary = read_json(out / "summary.json")
    assert summary == summarize(results)
    values = [result["after"]["map_at_r"] for result in results]
    entry = summary["cbml/digits"]["after"]["map_at_r"]
    assert entry["mean"] == pytest.approx(sum(values) / 2)
    assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    names = [each.folder.name for each in plan("cbml/omniglot-small-mvc-weight", out=tmp_path / "x", seeds=2)]
    assert names[:3] == ["0.0-seed-0", "0.0-seed-1", "0.1-seed-0"]
    labels = tmp_path / "labels.toml"
    labels.write_text('extends = "cbml/digits"\n[sweep.any.".."]\n[sweep.any."a/b"]\n')
    assert [each.folder for each in plan(str(labels), out=out / "x")] == [out / "x" / "-", out / "x" / "a-b"]


@pytest.mark.usefixtures("without_report")
def test_a_failed_run_leaves_other_runs(tmp_path, pml_ext_command):
    recipe = tmp_path / "mine.toml"
    out = tmp_path / "out"
    recipe.write_text('extends = "cbml/digits"\n[sweep]\n"sampler.batch_size" = [75, 80]\n')
    sets = [f"--set={override}" for override in (*QUICK, "schedule.epochs=1", "schedule.milestones=[1]")]
    done = pml_ext_command("train", recipe, "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 1
    summary = read_json(out / "summary.json")
    (failure,) = summary.pop("failures")
    assert failure.pop("error").startswith("sampler: found batch_size = 75; 10 classes x m = 8")
    assert failure == {"recipe": f"{recipe}@75", "seed": 0, "folder": str(out / "75")}
    assert list(summary) == [f"{recipe}@80"]
    assert {path.name for path in out.iterdir()} == {"80", "summary.json"}
    assert "trained network" in done.stdout
    assert f"warning: {recipe}@75, seed 0, in {out / '75'} failed: sampler: found batch_size = 75" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"pml-ext: 1 of 2 runs failed: {recipe}@75, seed 0")
    assert "Traceback" not in done.stderr
    with pytest.raises(FailedRunsError, match="2 of 2 runs failed"):
        quick(tmp_path / "none", "sampler.batch_size=75", seeds=2)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("name", ["report.html", "network.json", "recipe.toml", "metrics.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["garbage", "empty"])
def test_damaged_files_are_named_with_remedies(finished, tmp_path, pml_ext_command, name, damage):
    """The text of every command has what to do; that is done here, and the file is as it was."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = (out / name).read_bytes()
    (out / name).write_bytes({"garbage": b"\x80garbage\xff" * 50, "empty": b""}[damage])
    said = ""
    for line in (["report", out], ["export", out, "--out", tmp_path / "x"], ["compare", out]):
        done = pml_ext_command(*line)
        if done.returncode != 0:
            text = done.stderr.splitlines()[-1]
            assert str(out / name) in text
            assert "--debug" not in text  # an error that nobody foresaw
            assert re.search("pml-ext report|--resume", text)
            said += text
    if "delete it and repeat" in said:
        (out / name).unlink()
    if "--resume" in said:
        quick(out, resume=True)
    elif said:
        draw_report(out, "cpu")
    if name in ("network.json", "recipe.toml"):
        assert (out / name).read_bytes() == whole
    assert name == "report.html" or changed_files(out) == []
    assert pml_ext_command("export", out, "--out", tmp_path / "y").returncode == 0


@pytest.mark.parametrize(
    ("given", "restarts", "text"),
    [
        (
            {"out": Path("mistyped"), "resume": True},
            "0",
            "mistyped: there is no run to resume; correct --out, or leave out",
        ),
        (
            {"out": Path("mine"), "resume": True},
            "0",
            r"mine has other files and no run \(no recipe.toml\); choose another --",
        ),
        ({"resume": True}, "0", "--resume needs --out, .*; type --out RUN --resume"),
        ({}, "0", r"runs/cbml-digits-0-\S+ cannot be written .*runs\); type --out FOLDER$"),
        ({}, "3", "torchrun --max-restarts needs --out"),
    ],
)
def test_folders_that_cannot_have_a_run(tmp_path, monkeypatch, given, restarts, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", overrides=typed(QUICK), device="cpu", **given)
    assert not (tmp_path / "mistyped").exists()


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


@pytest.fixture
def projections(monkeypatch):
    """In place of every projection that a report would draw; t-SNE takes most of a report's time."""
    drawn = Mock(side_effect=lambda *_, **__: Figure())
    monkeypatch.setattr("pml_ext_train.report.figures.projections", drawn)
    return drawn


@pytest.fixture
def shop(install_plugin):
    """A plugin that is found by its entry point, with a data set that has queries and a gallery."""
    with registry.isolated():
        install_plugin("shop_plugin", SHOP, entry_point="shop")
        yield


def directions(run, split):
    return torch.nn.functional.normalize(run.embeddings(split))


@pytest.mark.nightly
@pytest.mark.usefixtures("shop", "projections")
def test_queries_are_searched_in_the_gallery(tmp_path, monkeypatch):
    data = ("data.name=shop", "data.augment={}", "sampler={name='shuffle', batch_size=40, iterations=4}")
    tests = ("evaluation.recall_at=[1, 10, 100]", "evaluation.training_images=50", "evaluation.test_every=2")
    training = Mock(wraps=train_run)
    monkeypatch.setattr("pml_ext_train.launch.launch.train_run", training)
    metrics = quick(tmp_path / "out", *data, *tests)
    run = training.call_args.args[0]
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
    again = draw_report(tmp_path / "out", "cpu").read_text()
    assert re.sub(r"figures [\d.]+ s", "", again) == re.sub(r"figures [\d.]+ s", "", report)


@pytest.mark.nightly
def test_a_curve_on_the_test_images_chooses_nothing(tmp_path, projections):
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
    assert [list(call.args[0]) for call in projections.call_args_list] == [["after training"]] * 2


RECIPE = """
description = "a list"
[data]
name = "{kind}:{place}/{kind}.csv"
vectors = "{place}/digits.npz"
[model]
trunk = "identity"
embedding_size = 16
[sampler]
batch_size = 50
[loss]
name = "{loss}"
[schedule]
epochs = 3
"""
HEADS = {"pairs": "image1,image2,same,split", "triplets": "anchor,positive,negative,split"}
KINDS = {"pairs": "pml/contrastive", "triplets": "pml/triplet-margin"}


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """A folder with digits as vectors and as images, lists of both, and recipes."""
    place = tmp_path_factory.mktemp("lists")
    digits = load_digits()
    np.savez(place / "digits.npz", embeddings=digits.data)
    write_digits(place / "photos", 300)
    rng = np.random.default_rng(0)
    rows = {kind: [] for kind in HEADS}
    for split, images in zip(("train", "validation", "test"), np.split(np.arange(300), [200, 240]), strict=True):
        for anchor in images:
            is_same = digits.target[images] == digits.target[anchor]
            positive = rng.choice(images[is_same & (images != anchor)])
            negative = rng.choice(images[~is_same])
            rows["triplets"].append(f"{anchor},{positive},{negative},{split}")
            rows["pairs"] += [f"{anchor},{positive},1,{split}", f"{anchor},{negative},0,{split}"]
    for kind, lines in rows.items():
        lines = list(dict.fromkeys(lines))
        of_images = [re.sub(r"\d+", r"photos/\g<0>.png", line, count=2 if kind == "pairs" else 3) for line in lines]
        (place / f"{kind}.csv").write_text("\n".join([HEADS[kind], *lines]))
        (place / f"{kind}-of-images.csv").write_text("\n".join([HEADS[kind], *of_images]))
        (place / f"{kind}.toml").write_text(RECIPE.format(kind=kind, place=place, loss=KINDS[kind]))
    return place


def run(place, kind, out, *settings, **more):
    return train(str(place / f"{kind}.toml"), out=out, overrides=typed(settings), device="cpu", **more)[0]


@pytest.fixture(scope="module")
def trained(lists, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return {kind: (out / kind, run(lists, kind, out / kind)) for kind in KINDS}


MAIN = {"pairs": "verification_roc_auc", "triplets": "triplet_accuracy"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_from_a_list(trained, kind):
    folder, metrics = trained[kind]
    names = load_recipe(str(folder / "recipe.toml")).metric_names()
    for phase in ("raw", "pca", "before", "after", "training"):
        assert set(metrics[phase]) <= set(names)
        assert MAIN[kind] in metrics[phase]
    assert metrics["after"][MAIN[kind]] > metrics["before"][MAIN[kind]]
    assert metrics["images"]["test"][kind] > 50
    assert "recall_at_1_by_class" not in metrics
    report = (folder / "report.html").read_text()
    assert f"The {kind} that are most wrong" in report
    assert "could not be drawn" not in report
    assert "Recall" not in report.partition("The recipe with all its settings")[0]
    assert sorted(path.stem for path in (folder / "figures").iterdir()) == [
        "similarities-of-positive-and-negative-pairs",
        "the-loss-and-its-terms",
    ]
    assert read_json(folder / "network.json")["classes"] == []


def test_the_metrics_are_those_of_the_trained_embeddings(lists, trained):
    folder, metrics = trained["pairs"]
    rows = np.load(lists / "digits.npz")["embeddings"]
    embeddings = load_run(folder, device="cpu").embed(rows).numpy().astype(np.float64)
    lines = (lists / "pairs.csv").read_text().splitlines()
    first, second, same = np.array([line.split(",")[:3] for line in lines if line.endswith("test")], dtype=int).T
    scores = (embeddings[first] * embeddings[second]).sum(1)
    assert metrics["after"]["verification_roc_auc"] == pytest.approx(roc_auc_score(same, scores), abs=1e-6)


def test_training_equals_a_plain_loop_on_the_lists(lists, tmp_path):
    """PML's loss on the drawn pairs, with the same network, batches and optimizer."""
    recipe = load_recipe(str(lists / "pairs.toml"), {"schedule.epochs": 1, "optimizer.name": "sgd"})
    one = Run(recipe, "loop", tmp_path / "one")
    vectors = one.data.training_images.vectors
    layer = copy.deepcopy(one.embedder)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    losses = []
    for batch in one.stages[0].sampler:
        optimizer.zero_grad()
        value = ContrastiveLoss()(layer(vectors[batch.items]), indices_tuple=batch.indices_tuple)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    run(lists, "pairs", tmp_path / "run", "schedule.epochs=1", "optimizer.name=sgd", "evaluation.baselines=false")
    _, recorded = loss_series(tmp_path / "run", [])["loss"]
    assert recorded == pytest.approx(losses, abs=1e-6)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("kind", KINDS)
def test_validation_rows_choose_the_epoch(lists, tmp_path, kind):
    settings = [f"evaluation.select={MAIN[kind]}", "evaluation.select_on=split", "evaluation.training_images=60"]
    whole = run(lists, kind, tmp_path / "whole", *settings)
    assert whole["images"]["validation"][kind] > 30
    assert 40 < whole["images"]["train_sample"]["images"] <= 60
    run(lists, kind, tmp_path / "parts", *settings, "schedule.epochs=2")
    parts = run(lists, kind, tmp_path / "parts", *settings, resume=True)
    phases = ("raw", "before", "after", "training")
    assert {phase: parts[phase] for phase in phases} == {phase: whole[phase] for phase in phases}
    states = [checkpoint.load(tmp_path / name / "checkpoints" / "last.pt") for name in ("whole", "parts")]
    torch.testing.assert_close(*(dict(state["parts"]["embedder"]) for state in states), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_listed_images_are_found_by_path(lists, tmp_path, kind):
    (tmp_path / "lists").mkdir()
    listed = shutil.copy(lists / f"{kind}-of-images.csv", tmp_path / "lists" / f"{kind}.csv")
    settings = [f"data.name={kind}:{listed}", "data.image_size=8", "data.channels=1", "model.embedding_size=8"]
    settings += ['model.trunk={name="convnet", width=8, blocks=2}', "schedule.epochs=1"]
    assert {"raw", "before", "after", "training"} <= run(lists, kind, tmp_path / "run", *settings, data=lists).keys()
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count('<img class="keeps-colors"') > 10
    assert "could not be drawn" not in report
    (lists / "photos" / "241.png").rename(lists / "photos" / "hidden")
    try:
        with pytest.raises(DataError, match=r"241.png: no such file, but .*lists it"):
            draw_report(tmp_path / "run", data=lists)
    finally:
        (lists / "photos" / "hidden").rename(lists / "photos" / "241.png")
    assert draw_report(tmp_path / "run", "cpu", data=lists).is_file()


def test_other_pairs_are_refused_on_resume(lists, tmp_path):
    file = shutil.copy(lists / "pairs.csv", tmp_path / "mine.csv")
    settings = [f"data.name=pairs:{file}", f"data.vectors={lists}/digits.npz"]
    run(lists, "pairs", tmp_path / "run", *settings, "schedule.epochs=1")
    head, first, *others = file.read_text().splitlines()
    changed = first.replace(",1,", ",0,") if ",1,train" in first else first.replace(",0,train", ",1,train")
    file.write_text("\n".join([head, changed, *others]))
    with pytest.raises(DataError, match="train has other vectors or labels"):
        run(lists, "pairs", tmp_path / "run", *settings, "schedule.epochs=2", resume=True)


def test_triplets_that_conflict_need_a_loss_of_triplets(lists, tmp_path):
    head, *rows = (lists / "triplets.csv").read_text().splitlines()
    anchor, positive, _, _ = rows[0].split(",")
    other = next(row.split(",")[1] for row in rows[1:] if row.split(",")[1] not in (anchor, positive))
    listed = tmp_path / "triplets.csv"
    listed.write_text("\n".join([head, *rows, f"{anchor},{other},{positive},train"]))
    settings = [f"data.name=triplets:{listed}", f"data.vectors={lists}/digits.npz", "schedule.epochs=1"]
    with pytest.raises(ConfigError, match="pml/multi-similarity cannot train on .* use pml/triplet-margin"):
        run(lists, "triplets", tmp_path / "run", *settings, "loss.name=pml/multi-similarity")
    assert run(lists, "triplets", tmp_path / "run", *settings)["after"]


def test_too_few_tuples_for_a_batch(lists, tmp_path):
    with pytest.raises(ConfigError, match="1 batches of 500 need more than the 200 training triplets; make batch_size"):
        run(lists, "triplets", tmp_path / "run", "sampler.batch_size=500")


def test_a_step_adds_few_operators():
    ours = of_a_step("cbml/digits", epoch_of_a_run, operators_of)
    bare = of_a_step("cbml/digits", bare_epoch, operators_of)
    assert sum(bare.values()) > 100
    assert sum(ours.values()) <= sum(bare.values()) + 3  # the check for NaN; clearing gradients is no operator


def test_a_step_waits_for_the_device_once(monkeypatch):
    """A bare loop waits for its loss; a run reads loss, norms and what is recorded in one transfer, and no more."""
    transfers = Mock(wraps=engine.read_numbers)
    monkeypatch.setattr(engine, "read_numbers", transfers)
    ours = of_a_step("cbml/digits", epoch_of_a_run, reads_of)
    assert transfers.call_count == 4 + 4 + 4 + 14  # the iterations of the four epochs that of_a_step trains
    assert ours.pop(TOGETHER) >= 2
    bare = of_a_step("cbml/digits", bare_epoch, reads_of)
    bare["item"] -= 1  # loss.item()
    assert ours == bare

"""Whole runs on listed pairs and triplets: vectors, images, resumed, by two processes, and their search."""

import re

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_train.files import read_json
from pml_ext_train.launch.launch import draw_report, train
from pml_ext_train.recipe import load_recipe
from pml_ext_train.records.series import loss_series
from pml_ext_train.training import checkpoint
from pml_ext_train.training.run import Run

from ..digit_files import write_digits
from ..overrides import typed

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
    for split, images in (("train", range(200)), ("validation", range(200, 240)), ("test", range(240, 300))):
        images = np.array(images)
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
def finished(lists, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return {kind: (out / kind, run(lists, kind, out / kind)) for kind in KINDS}


MAIN = {"pairs": "verification_roc_auc", "triplets": "triplet_accuracy"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_from_a_list(finished, kind):
    folder, metrics = finished[kind]
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


def test_the_metrics_are_those_of_the_trained_embeddings(lists, finished):
    folder, metrics = finished["pairs"]
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
    train_images = one.data.training_images
    layer = torch.nn.Linear(64, 16)
    layer.load_state_dict(
        one.embedder[-1].state_dict() if hasattr(one.embedder, "__getitem__") else one.embedder.state_dict()
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    losses = []
    for batch in one.stages[0].sampler:
        optimizer.zero_grad()
        value = ContrastiveLoss()(layer(train_images.vectors[batch.items]), indices_tuple=batch.indices_tuple)
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
    listed = tmp_path / "lists" / f"{kind}.csv"
    lines = (lists / f"{kind}-of-images.csv").read_text().splitlines()
    listed.write_text("\n".join(lines))
    settings = [f"data.name={kind}:{listed}", "data.image_size=8", "data.channels=1", "model.embedding_size=8"]
    settings += ['model.trunk={name="convnet", width=8, blocks=2}', "schedule.epochs=1"]
    metrics = run(lists, kind, tmp_path / "run", *settings, data=lists)
    assert {"raw", "before", "after", "training"} <= metrics.keys()
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
    place = tmp_path / "mine"
    place.mkdir()
    lines = (lists / "pairs.csv").read_text().splitlines()
    (place / "pairs.csv").write_text("\n".join(lines))
    settings = [f"data.name=pairs:{place}/pairs.csv", f"data.vectors={lists}/digits.npz", "schedule.epochs=1"]
    run(lists, "pairs", tmp_path / "run", *settings)
    first = lines[1].rsplit(",", 2)
    lines[1] = ",".join([first[0], "0" if first[1] == "1" else "1", first[2]])
    (place / "pairs.csv").write_text("\n".join(lines))
    settings[-1] = "schedule.epochs=2"
    with pytest.raises(DataError, match="train has other vectors or labels"):
        run(lists, "pairs", tmp_path / "run", *settings, resume=True)


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

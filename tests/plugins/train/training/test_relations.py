"""Runs with ``[data] relation``: tables of label sets, folders and paths as trees, PML's losses, samplers, metrics."""

import numpy as np
import pytest
import torch
from PIL import Image

import pml_ext
from pml_ext import Hierarchy, SharedLabel, WithRelation
from pml_ext.errors import ConfigError, DataError
from pml_ext.relations import RELATIONS
from pml_ext_train.data import LabeledImages, folder, table
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import build_loss, load_recipe, loss_context, schema
from pml_ext_train.training.samplers import build_sampler

from ....overrides import typed

SETS = ("cat|dog", "dog", "dog|cat|owl", "owl", "cat")
QUICK = ("schedule.epochs=1", "sampler.iterations=2", "data.image_size=16", "evaluation.figures=few")
QUICK += ("model.trunk={name='convnet', blocks=2, width=4}", "model.embedding_size=8")


def images(place, names):
    generator = np.random.default_rng(0)
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (18, 18, 3)).astype(np.uint8)).save(place / name)


@pytest.fixture
def listed(tmp_path):
    """A table of label sets, 12 images of each."""
    rows = [f"{SETS[k % 5]},{k}.png,{'train' if k < 40 else 'validation'}" for k in range(60)]
    images(tmp_path, [f"{k}.png" for k in range(60)])
    (tmp_path / "mine.csv").write_text("\n".join(["label,path,split", *rows]))
    return tmp_path / "mine.csv"


@pytest.fixture
def tree(tmp_path):
    """A folder of classes in folders, two levels deep, and one that goes deeper."""
    names = [f"{above}/{below}/{k}.png" for above in ("bird", "fish", "tree") for below in ("x", "y") for k in range(6)]
    images(tmp_path / "photos", [*names, "bird/x/old/7.png"])
    return tmp_path / "photos"


@pytest.mark.usefixtures("without_report")
def test_a_run_on_a_table_of_label_sets(listed, tmp_path):
    settings = [f"data.name=table:{listed}", "data.relation={name='shared-label', graded=false}", *QUICK]
    settings += ["loss={name='pml/contrastive'}", "evaluation.ndcg_at=[10]"]
    settings += ["sampler={name='m-per-label', m=4, batch_size=16}"]
    after = train("fit/photographs", out=tmp_path / "run", overrides=typed(settings), device="cpu")[0]["after"]
    assert {"recall_at_1", "ndcg_at_10", "map_at_r", "nmi"} <= after.keys()
    assert after["recall_at_1"] > 0.3  # two random sets share a label more often than not
    with pytest.raises(DataError, match="separate them by"):
        table(path=str(listed))
    known = table(path=str(listed), label_sets=True).train
    assert known.class_names == ["cat", "cat|dog", "cat|dog|owl", "dog", "owl"]


@pytest.mark.usefixtures("without_report")
def test_a_run_on_a_folder_as_a_tree(tree, tmp_path):
    settings = [f"data.name=folder:{tree}", "data.levels=2", "data.split=image", "evaluation.ndcg_at=[5]", *QUICK]
    settings += ["data.relation={name='hierarchy', graded=true}", "loss={name='cbml'}"]
    settings += ["sampler={name='tree', m=2, batch_size=12, parents=3}"]
    after = train("fit/photographs", out=tmp_path / "run", overrides=typed(settings), device="cpu")[0]["after"]
    assert after["recall_at_1"] >= after["recall_at_1_level_2"]
    assert 0 < after["ndcg_at_5"] <= 1
    splits = folder(path=str(tree), split="image", levels=2)
    assert splits.train.class_names == [f"{above}/{below}" for above in ("bird", "fish", "tree") for below in "xy"]
    assert not splits.note
    with pytest.raises(ConfigError, match="levels of a folder"):
        folder(path=str(tree), levels=0)


def recipe_of(*settings):
    return load_recipe("cbml/digits", typed(settings))


def test_losses_and_miners_get_the_relation():
    def built(names, *settings):
        recipe = recipe_of(*settings)
        return build_loss(recipe.loss, loss_context(recipe, [*range(len(names))], names))

    tree = "data.relation={name='hierarchy', level=1}"
    shared = "data.relation=shared-label"
    table = [[1, 1], [0, 1]]
    for loss, kind in (("cbml", pml_ext.CBMLLoss), ("pml/contrastive", WithRelation), ("pddm", WithRelation)):
        more = ", distance={name='pddm'}" if loss == "pddm" else ""
        given, _ = built(["a/x", "a/y", "b/z"], tree, f"loss={{name='{loss}'{more}}}")
        assert isinstance(given, kind)
        assert given.relation.paths == [("a", "x"), ("a", "y"), ("b", "z")]
    parts = "memory={size=256}, miner='pml/multi-similarity', regularizer='pml/lp'"
    memory, miner = built(["a|b", "b"], shared, f"loss={{name='pml/contrastive', {parts}}}")
    assert miner is None
    assert isinstance(memory.miner, WithRelation)
    assert memory.relation.table.tolist() == table
    swapped = "miner={name='anchor-swap', miner={name='semi-hard-triplet'}}"
    _, miner = built(["a|b", "b"], shared, f"loss={{name='batch-all-triplets', {swapped}}}")
    assert miner.relation.table.tolist() == table
    assert built(["a/x", "b"], "data.relation=hierarchy", "loss.relation=none")[0].relation is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["data.relation=trees"], "relation: no relation 'trees'"),
        (["data.relation={name='hierarchy', depth=2}"], "data.relation.depth: no setting of hierarchy 'depth'"),
        (["data.relation={name='hierarchy', level=0}"], "data.relation: hierarchy refuses level = 0"),
        (["data.relation={name='shared-label', threshold=3.0}"], "threshold of SharedLabel"),
        (
            ["data.relation=hierarchy", "data.labels=clusters"],
            "names of the data's classes, which labels = 'clusters' replaces",
        ),
        (["data.relation={name='hierarchy', graded=true}", "loss={name='n-pair'}"], "has no weights of pairs"),
        (["data.relation=hierarchy", "loss={name='pml/proxy-anchor'}"], "does not compare pairs"),
    ],
)
def test_recipes_that_do_not_fit(settings, text):
    assert set(schema.RELATIONS) == set(RELATIONS)
    with pytest.raises(ConfigError, match=text):
        recipe_of(*settings)


def test_unknown_classes_are_found_by_name():
    recipe = recipe_of("data.relation={name='negatives-only', unknown='other'}")
    relation = loss_context(recipe, [0, 1], ["cat", "other"])["relation"]
    assert relation.unknown == 1
    with pytest.raises(ConfigError, match="no class is called 'other'; classes: cat, dog"):
        loss_context(recipe, [0, 1], ["cat", "dog"])


def test_a_sampler_gets_the_relation():
    names = ["a|b", "b", "c"]
    labels = np.arange(60) % 3
    some = LabeledImages(torch.zeros(60, 1, 4, 4, dtype=torch.uint8), labels, names)
    recipe = recipe_of("data.relation=shared-label", "sampler={name='m-per-label', m=2, batch_size=6}")
    sampler, _ = build_sampler(recipe.sampler, some, 0, SharedLabel.of_classes(names))
    drawn = labels[list(sampler)[:6]]
    assert (drawn != 2).sum() >= 3
    recipe = recipe_of("data.relation=hierarchy", "sampler={name='tree', batch_size=8, m=4}")
    with pytest.raises(ConfigError, match="tree"):
        build_sampler(recipe.sampler, some, 0, Hierarchy(names))
    of_pml = recipe_of("sampler={name='pml/hierarchical', samples_per_class=2, batch_size=8}")
    with pytest.raises(ConfigError, match="labels of two levels.* --set sampler.name=tree"):
        build_sampler(of_pml.sampler, some, 0, Hierarchy(names))

"""Packaged recipes: every row is built, every setting has an origin, and quotations match the papers."""

import dataclasses
import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch

from pml_ext import registry
from pml_ext.errors import MissingExtraError
from pml_ext_train.data import image_sets, omniglot
from pml_ext_train.data.published import Count
from pml_ext_train.networks.network import Network
from pml_ext_train.recipe import (
    Recipe,
    augmentation_of,
    build_dataset,
    build_trunk,
    flat,
    load_recipe,
    load_recipes,
    origin_of,
    origins_of,
    own_optimizer,
    papers,
    pipelines,
    preprocessing_of,
    quoted,
    read_tables,
    tables_of_papers,
    variant_tables,
)
from pml_ext_train.training.stages import build_stages

from .train.data import made_up

CLASSES = 104
TESTED = 4
EACH = 4  # 100 trained classes: N-pair has batches of 200, two of a class
TRAINED = CLASSES - TESTED
LARGE = ("pddm/2",)  # a head of 67 million weights
INSTALLED = {record.name for record in registry.plugins()}
OF_FIT = "photographs photographs-pretrained photographs-fine-tuned vectors unlabeled unlabeled-vectors"
OWN_DATA = {f"fit/{name}" for name in OF_FIT.split()}  # data of the user's own


def packaged(name):
    """Whether a recipe of an installed plugin needs no photographs."""
    owner = name.partition("/")[0]
    return owner in INSTALLED | {"pml"} and name not in OWN_DATA and not name.endswith("/blocks")


RECIPES = list(filter(packaged, registry.recipes()))


@pytest.fixture(scope="module")
def made_up_sets(tmp_path_factory):
    """A folder with every set that recipes use; the published counts match it."""
    place = tmp_path_factory.mktemp("sets")
    train = Count(TRAINED * EACH, TRAINED)
    test = Count(TESTED * EACH, TESTED)
    apart = {"train": train, "query": Count(TESTED, TESTED), "gallery": Count(TESTED * (EACH - 1), TESTED)}
    sets = {
        (image_sets, "CUB"): (made_up.cub_folder, {}, {"train": train, "test": test}),
        (image_sets, "CARS196"): (made_up.cars_folder, {}, {"train": train, "test": test}),
        (image_sets, "SOP"): (made_up.sop_folder, {"tested": TESTED}, {"train": train, "test": test}),
        (image_sets, "INSHOP"): (made_up.inshop_folder, {"tested": TESTED}, apart),
        (image_sets, "IMAGENET"): (made_up.imagenet_folder, {}, apart),
    }
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), (make, more, counts) in sets.items():
            about = getattr(module, name)
            make(place / about.name, CLASSES, EACH, **more)
            patch.setattr(module, name, dataclasses.replace(about, counts=counts))
        patch.setattr(image_sets, "PDDM", {"train": Count(None, TRAINED), "test": Count(None, TESTED)})
        made_up.omniglot_zip(place / omniglot.TRAIN, {"Greek": 80})
        made_up.omniglot_zip(place / omniglot.TEST, {"Latin": 2})
        small = dataclasses.replace(omniglot.SMALL, counts={"train": Count(240, 80), "test": Count(6, 2)})
        patch.setattr(omniglot, "SMALL", small)
        (place / "wordnet.is_a.txt").write_text("n00000001 n01440764\n")
        patch.chdir(place)  # the folder that recipes look for the hierarchy in
        yield place


@pytest.fixture(scope="module")
def built():
    """What was built already, by what it was built from: many rows share a data set and a network."""
    return {}


def once(built, key, make):
    key = json.dumps(key, sort_keys=True, default=str)
    if key not in built:
        built[key] = make()
    return built[key]


def splits_of(recipe, place, built):
    folder = {"omniglot-small": place, "digits": None}.get(recipe.data.name, place / recipe.data.name)
    return once(built, [recipe.data.name, recipe.data.settings], lambda: build_dataset(recipe.data, folder))


def check_network(recipe, place, built):
    """Sends an image of each split through the pipeline, and a batch through the network, which has no storage."""
    splits = splits_of(recipe, place, built)

    preprocessing, cuts = preprocessing_of(recipe, splits)
    size = (preprocessing.channels, preprocessing.image_size, preprocessing.image_size)

    def check_pipeline():
        augmented, plain = preprocessing.transforms(cuts, **augmentation_of(recipe.data, preprocessing))
        for images, steps in itertools.product([splits.train, *splits.tested().values()], (augmented, plain)):
            assert images.with_transform(steps)[0][0].shape == size

    def make_trunk():
        with torch.device("meta"):
            trunk = build_trunk(recipe.model.trunk, size[0], size[1], trained=True)
            return trunk, trunk.eval()(torch.zeros(2, *size)).shape[1]

    once(built, recipe.data.model_dump(), check_pipeline)
    trunk, features = once(built, [recipe.model.trunk.model_dump(), size], make_trunk)
    with torch.device("meta"):
        hidden = None if recipe.model.embedder == "none" else recipe.model.hidden_layers
        network = Network(preprocessing, trunk, recipe.model.embedding_size, hidden, features)
        assert network.embedder(torch.zeros(2, features)).shape == (2, recipe.model.embedding_size)


def without_numbers(value):
    """The same with every fraction as one: rows that differ in a weight alone take the same steps."""
    if isinstance(value, dict):
        return {key: without_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_numbers(each) for each in value]
    return 1.0 if isinstance(value, float) else value


def step(stage, embeddings, labels):
    """One value of a stage's loss, with its miner, and what comes of it backward."""
    value = stage.loss(embeddings, labels, stage.miner(embeddings, labels) if stage.miner else None)
    assert torch.isfinite(value)
    value.backward()
    if stage.optimizer is not None:
        stage.optimizer.step()


def check_stages(recipe, splits):
    """Each stage draws a batch and takes a step over made-up embeddings."""
    short = recipe.sampler.model_copy(update={"iterations": 1})
    stages = [each.model_copy(update={"sampler": each.sampler and short}) for each in recipe.stages]
    data = recipe.data
    if data.pseudo is not None:  # 10,000 clusters of Online Products, and there are fewer images
        data = data.model_copy(update={"pseudo": data.pseudo.model_copy(update={"clusters": 60})})
    size = min(recipe.model.embedding_size, 1024)
    model = recipe.model.model_copy(update={"embedding_size": size})
    recipe = recipe.model_copy(update={"data": data, "model": model, "sampler": short, "stages": stages})
    for stage in build_stages(recipe, splits.train, torch.device("cpu"), seed=0):
        batch = data.pseudo.batch_size[0] if data.pseudo is not None else stage.batch_size
        drawn = list(itertools.islice(iter(stage.sampler), batch))
        assert len(drawn) == batch
        labels = torch.as_tensor(splits.train.labels)[drawn[:24]]  # two classes or more, and whole triplets
        embeddings = torch.randn(len(labels), size) + 2 * torch.randn(int(labels.max()) + 1, size)[labels]
        step(stage, embeddings.requires_grad_(), labels)


@pytest.mark.parametrize("name", RECIPES)
def test_every_row_of_tables_is_built(name, made_up_sets, built):
    torch.manual_seed(0)
    with torch.device("meta" if name in LARGE else "cpu"):
        recipes = load_recipes(name)
    for recipe in recipes.values():
        assert recipe.description
        splits = splits_of(recipe, made_up_sets, built)
        check_network(recipe, made_up_sets, built)
        what = [
            recipe.model_dump(include={"stages", "loss", "sampler"}),
            recipe.model.embedding_size,
            recipe.data.model_dump(include={"labels", "pseudo"}),
        ]
        once(built, without_numbers(what), lambda recipe=recipe, splits=splits: check_stages(recipe, splits))
        for value in quoted(recipe.paper, recipe.data.name):
            if recipe.data.name != "omniglot-small" and value.metric:  # small ones report fewer K
                assert value.phase in ("after", "training", "learned_metric")
                assert value.metric in recipe.evaluation.metric_names(), (
                    f"{name} does not test {value.metric}, which it quotes"
                )


NAMES = ("angular", "cbml", "density", "pddm", "pml/multi-similarity", "triplets")


@pytest.mark.parametrize("name", NAMES)
def test_blocks_differ_in_loss_and_rate(name):
    try:
        recipe = load_recipe(f"{name}/blocks").as_dict()
    except MissingExtraError:
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")
    first = load_recipe("pml/multi-similarity/blocks").as_dict()
    model = recipe["model"]
    assert (model["start"], model["refit"], model["freeze"]["until"]) == ("within-class", "within-class", "blocks.5")
    if name == "pddm":
        first["optimizer"]["lr"] = 2e-4  # the rate of the others makes its embeddings collapse
    for table in ("model", "data", "sampler", "optimizer", "schedule"):
        assert recipe[table] == first[table]
    if name != "pml/multi-similarity":
        assert recipe["loss"] != first["loss"]


NO_SETTINGS = ("description", "extends", "paper", "origin", "sweep", "tune")
OF_TABLES = [name for name in registry.recipes() if read_tables(name).get("paper", {}).get("table")]
SETTINGS = {  # CBML takes the sum where it stands beside the tables; density has ten images of ten classes
    "cbml/omniglot-small-averaging@const": {"loss.mvc_reduction": "sum", "loss.delta": 0.25},
    "cbml/omniglot-small-averaging@log": {"loss.mvc_reduction": "sum", "loss.delta": None},
    "cbml/omniglot-small-mvc-weight@0.1": {"loss.mvc_reduction": "sum"},
    "cbml/multi-similarity-omniglot-small": {"loss.regularizer.reduction": "sum"},
    "density/omniglot-small": {"sampler.m": 10, "sampler.batch_size": 100, "loss.neg_margin": 1},
    "density/omniglot-small-triplet": {"sampler.m": 10, "sampler.batch_size": 100, "loss.margin": 1},
    "density/omniglot-small-n-pair": {"sampler.m": 10, "loss.normalize_embeddings": None, "loss.l2_reg_weight": None},
    "pddm/omniglot-small-as-printed": {
        "sampler.m": 4,
        "sampler.batch_size": 64,
        "optimizer.name": "sgd",
        "optimizer.lr": 1e-4,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 5e-4,
        "loss.num_quadruplets": 1,
    },
}
IN_NO_PAPER = ("model.norm", "model.dropout", "model.freeze")  # a group's origin, "paper", is not theirs


def stated(tables):
    """The origins that a table of a file states, its pipelines' included."""
    extends = tables.get("extends", [])
    named = [extends] if isinstance(extends, str) else extends
    files = [tomllib.loads(pipelines()[name].read_text("utf-8")) for name in named if name.startswith("pipelines/")]
    return {key: text for each in [*files, tables] for key, text in each.get("origin", {}).items()}


def settings(tables):
    return flat({key: value for key, value in tables.items() if key not in NO_SETTINGS})


@pytest.mark.parametrize("name", OF_TABLES)
def test_every_setting_of_recipes_has_an_origin(name):
    for full, tables in variant_tables(name).items():
        resolved = flat(
            Recipe.model_validate(tables).model_dump(exclude={"description", "paper", "track"}, exclude_none=True)
        )
        origins = origins_of(resolved, tables.get("origin", {}))
        assert [key for key, origin in origins.items() if not origin] == [], full
        assert [key for key in IN_NO_PAPER if origins[key].startswith("paper")] == [], full
        if resolved["schedule.name"] == "constant":
            unused = ("schedule.gamma", "optimizer.scheduled")
            assert {origins[key].partition(" ")[0] for key in unused} <= {"without", "ours", "ours,", "ours:"}, full
        if resolved["schedule.name"] == "cosine":
            assert origins["schedule.gamma"] == "without effect here", full


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_file_states_its_settings_origins(name):
    """An inherited origin is of the inherited value."""
    tables = tomllib.loads(registry.find("recipe", name)[1].read_text("utf-8"))
    own = stated(tables)
    without = [key for key in settings(tables) if not origin_of(key, own)]
    for entry, choices in tables.get("sweep", {}).items():
        if isinstance(choices, list):
            without += [entry] if not origin_of(entry, own) else []
            continue
        for label, choice in choices.items():
            known = own | stated(choice)
            without += [f"{entry}.{label}: {key}" for key in settings(choice) if not origin_of(key, known)]
    assert without == []


@pytest.mark.parametrize("name", SETTINGS)
def test_small_versions_have_the_papers_settings(name):
    (recipe,) = load_recipes(name).values()
    values = flat(recipe.as_dict())
    assert {key: values.get(key) for key in SETTINGS[name]} == SETTINGS[name]
    own = own_optimizer(recipe.optimizer, recipe.loss)
    assert (own.lr, own.settings) == (recipe.optimizer.lr, recipe.optimizer.settings) or name.startswith("cbml")
    assert own.scheduled or not name.startswith("density")


def test_sizes_of_small_networks_are_ours():
    for full, tables in variant_tables("triplets/small-networks").items():
        for key in ("model.trunk.blocks", "model.trunk.width"):
            assert origin_of(key, tables["origin"]).startswith("ours"), full


OURS = ("angular", "cbml", "density", "pddm", "triplets")
# As printed, a row of each table; columns first.
PRINTED = {
    ("angular/2", "Stanford Car", "NL&AL"): "NMI 63.2 F1 32.2 R@1 71.4 R@2 81.4 R@4 87.5 R@8 92.1",
    ("cbml/4", "CUB", "ResNet-50, CBML-const"): "R@1 69.2 R@2 79.3 R@4 86.3 R@8 91.6",
    ("cbml/7", "CUB", "CBML + MVC + Hard Mining"): "R@1 69.9 R@2 80.4 R@4 87.2 R@8 92.5",
    ("density/1", "CUB-200-2011", "DML-DA_con"): "NMI 62.32 R@1 55.64 R@2 66.96 R@4 77.92 R@8 86.23",
    ("pddm/1", "CUB-200-2011", "PDDM+Quadruplet"): "R@1 58.3",
    ("triplets/1", "CUB-200-2011", "Hinge Loss, 3 Clusters, Local"): "F1 .21 NMI .35",
}
# How many numbers with a point each table has, and their sum, added up from the papers' texts.
TOTALS = {
    "angular": {"1": (36, 2064.9), "2": (36, 2272.3), "3": (36, 2668.7), "4": (20, 1644.7), "5": (5, 341.3)},
    "cbml": {
        "2": (265, 23868.2),
        "3": (176, 11589.7),
        "4": (144, 12876.3),
        "5": (60, 5402.7),
        "6": (8, 548.5),
        "7": (28, 2232.5),
        "8": (140, 7890.5),
        "9": (4, 63.0),
        "10": (27, 1256.4),
        "11": (27, 1329.7),
        "12": (16, 1120.3),
        "13": (4, 203.7),
    },
    "density": {"1": (189, 15145.5)},
    "pddm": {"1": (84, 6025.1), "2": (13, 364.7)},
    "triplets": {"1": (18, 4.55)},
}


def printed(name):
    paper, _, number = name.partition("/")
    return papers()[paper].tables[number]


@pytest.mark.parametrize(("name", "heading", "row"), PRINTED)
def test_numbers_are_those_of_the_table(name, heading, row):
    words = PRINTED[name, heading, row].split()
    values = {column: cell for above, column, cell in printed(name).values(row) if above == heading}
    wanted = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert {column: values[column] for column in wanted} == wanted


@pytest.mark.parametrize("paper", TOTALS)
def test_rows_and_tables_add_up(paper):
    for number, total in TOTALS[paper].items():
        numbers = [cell for row in printed(f"{paper}/{number}").rows for cell in row if isinstance(cell, float)]
        assert (len(numbers), round(sum(numbers), 2)) == total, number


def test_our_recipes_quote_by_table_and_row():
    plain = {}
    for name in registry.recipes():
        paper = read_tables(name).get("paper", {})
        of_a_trunk = "/frozen" in name or "/blocks" in name  # pretrained, and in no paper
        if name.partition("/")[0] in OURS and not of_a_trunk:
            assert paper, f"{name} names no paper"
            assert set(paper) <= {"table", "row", "column", "variants", "note"}, name
            if "/" not in paper["table"]:
                plain[name] = paper["table"]
    assert sorted(plain) == [f"{paper}/digits" for paper in OURS]  # no table of the papers, and no value


def test_each_row_has_a_recipe_or_reason():
    entries = [entry for entry in tables_of_papers() if entry["name"].partition("/")[0] in OURS]
    assert {"cbml/13", "angular/5", "pddm/2", "density/1", "triplets/1", "density/fig-4"} <= {
        e["name"] for e in entries
    }
    for entry in entries:
        assert any(entry["recipes"].values()) != bool(entry["reason"]), entry["name"]
        reasons = {row["row"]: row["reason"] for row in entry["rows"] if not row["recipes"]}
        short = {row: reason for row, reason in reasons.items() if len(reason.split()) <= 10}
        assert short == {}, entry["name"]


def test_measured_rows_are_on_the_measurements_page():
    page = (Path(__file__).parents[2] / "docs" / "measurements.md").read_text("utf-8")
    for entry in tables_of_papers():
        for recipe in entry["measured"]:
            assert recipe in [*entry["recipes"]["small"], *entry["recipes"]["full"]]
            assert re.search(rf"{recipe}(?![\w-])", page), recipe

"""Every variant of every packaged recipe without photographs: data, pipeline, network, loss and sampler.

Published sets are made up in their own layouts, with the counts that they then have. Networks are built without
storage, and losses take a step over made-up embeddings.
"""

import dataclasses
import itertools
import json

import pytest
import torch

from pml_ext import registry
from pml_ext_train.data import image_sets, omniglot
from pml_ext_train.data.published import Count
from pml_ext_train.networks.network import Network
from pml_ext_train.recipe import augmentation_of, build_dataset, build_trunk, load_recipes, preprocessing_of, quoted
from pml_ext_train.training.stages import build_stages

from .train.data import made_up

CLASSES = 104
TESTED = 4
EACH = 4  # 100 trained classes: N-pair has batches of 200, two of a class
TRAINED = CLASSES - TESTED
LARGE = ("pddm/2",)  # a head of 67 million weights
INSTALLED = {record.name for record in registry.plugins()}
RECIPES = [name for name in registry.recipes() if name.partition("/")[0] in INSTALLED or name.startswith("pml/")]
for _name in (
    "photographs",
    "photographs-pretrained",
    "photographs-fine-tuned",
    "vectors",
    "unlabeled",
    "unlabeled-vectors",
):
    RECIPES.remove(f"fit/{_name}")  # of data of the user's own
RECIPES = [name for name in RECIPES if not name.endswith("/blocks")]  # of photographs, too


@pytest.fixture(scope="module")
def made_up_sets(tmp_path_factory):
    """A folder with every set that recipes use, whose published counts are those of what is there."""
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

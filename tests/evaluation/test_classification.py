"""Classification by class means, and by means estimated over a hierarchy, against plain loops."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import class_means, nearest_class_mean, related_means
from pml_ext.evaluation.classification import ancestors
from pml_ext_train.data import omniglot
from pml_ext_train.data.image_sets import read_wordnet_parents
from pml_ext_train.data.published import Count
from pml_ext_train.launch.launch import train
from pml_ext_train.training.protocols import first_halves

from ..overrides import typed
from ..plugins.train.data.made_up import omniglot_zip


def random_points(count, size, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_means(points, labels):
    sums = {}
    for point, label in zip(points.tolist(), labels.tolist(), strict=True):
        sums.setdefault(label, []).append(point)
    return {label: [sum(column) / len(column) for column in zip(*rows, strict=True)] for label, rows in sums.items()}


def slow_accuracy(points, labels, means, k):
    """The mean chance of a point's class to be among the k nearest, where equally near classes are shuffled."""
    total = 0.0
    for point, label in zip(points.tolist(), labels.tolist(), strict=True):
        distance = {name: sum((a - b) ** 2 for a, b in zip(point, mean, strict=True)) for name, mean in means.items()}
        nearer = sum(distance[name] < distance[label] - 1e-12 for name in means)
        alike = sum(abs(distance[name] - distance[label]) <= 1e-12 for name in means)
        total += min(1.0, max(0.0, (k - nearer) / alike))
    return total / len(labels)


@pytest.mark.parametrize("tile", [8_000_000, 40])
def test_nearest_class_mean_against_a_loop(monkeypatch, tile):
    monkeypatch.setattr("pml_ext.evaluation.classification._TILE", tile)
    labels = torch.tensor([7, 3, 3, 9, 7, 11, 9, 3, 20, 11] * 3)
    points = random_points(30, 4)
    classes, means = class_means(points, labels)
    slow = slow_means(points, labels)
    assert classes.tolist() == sorted(slow)
    torch.testing.assert_close(means, torch.tensor([slow[label] for label in sorted(slow)], dtype=torch.float64))
    tested = random_points(25, 4, seed=1)
    truth = labels[:25]
    order = torch.tensor([3, 0, 4, 2, 1])
    given = nearest_class_mean(tested, truth, classes[order], means[order], top=(1, 2, 5, 9))
    assert given == pytest.approx({f"top_{k}": slow_accuracy(tested, truth, slow, k) for k in (1, 2, 5, 9)})
    assert given["top_1"] < given["top_2"] < given["top_5"] == 1


def test_equal_means_are_in_a_random_order():
    points = random_points(12, 3)
    labels = torch.arange(12) % 6
    means = random_points(3, 3, seed=2)[[0, 1, 0, 2, 0, 1]]
    slow = dict(enumerate(means.tolist()))
    for k in range(1, 7):
        wanted = slow_accuracy(points, labels, slow, k)
        assert nearest_class_mean(points, labels, torch.arange(6), means, [k])[f"top_{k}"] == pytest.approx(wanted)
    alike = means[:1].expand(6, 3)
    assert nearest_class_mean(points, labels, torch.arange(6), alike)["top_1"] == pytest.approx(1 / 6)


TREE = {  # two parents of one class, a class without relatives nearer than the root, one without parents
    "tit": ["songbird"],
    "wren": ["songbird"],
    "hawk": ["raptor", "hunter"],
    "owl": ["raptor"],
    "cat": ["hunter"],
    "songbird": ["bird"],
    "raptor": ["bird"],
    "bird": ["animal"],
    "hunter": ["animal"],
    "gull": ["waterbird"],
    "waterbird": ["bird"],
    "oak": ["tree"],
    "tree": ["plant"],
}


def slow_related(name, known, parents):
    """The known classes with the nearest common ancestor, a level at a time."""

    def above(one):
        return set() if one not in parents else set(parents[one]).union(*(above(p) for p in parents[one]))

    level = set(parents.get(name, []))
    seen = set(level)
    while level:
        relatives = sorted(other for other in known if other != name and above(other) & level)
        if relatives:
            return relatives
        level = {p for one in level for p in parents.get(one, [])} - seen
        seen |= level
    return sorted(known)


@pytest.mark.parametrize("tested", [["tit"], ["hawk", "gull"], ["oak", "moss"], ["wren", "cat", "owl"]])
def test_related_means_against_a_loop(tested):
    names = ["tit", "wren", "hawk", "owl", "cat", "gull", "oak", "moss"]
    known = {name: point for name, point in zip(names, random_points(8, 3), strict=True) if name not in tested}
    for name, mean in zip(tested, related_means(tested, known, TREE), strict=True):
        rows = [known[relative].tolist() for relative in slow_related(name, known, TREE)]
        assert mean.tolist() == pytest.approx([sum(column) / len(rows) for column in zip(*rows, strict=True)])
    if tested == ["hawk", "gull"]:
        assert slow_related("hawk", known, TREE) == ["cat", "owl"]
        assert slow_related("gull", known, TREE) == ["owl", "tit", "wren"]


def test_cyclic_hierarchies_raise_and_levels_are_listed():
    assert ancestors("hawk", TREE) == [["raptor", "hunter"], ["bird", "animal"]]
    with pytest.raises(DataError, match="hen is its own ancestor"):
        ancestors("hen", {"hen": ["egg"], "egg": ["hen"]})
    assert ancestors("hawk", {"hawk": ["a"], "a": ["b"], "b": ["a"]}) == [["a"], ["b"]]


# In a run, with alphabets as parents


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, and its metrics."""
    from pml_ext_train.recipe import load_recipes
    from pml_ext_train.results.finish import finish
    from pml_ext_train.training.loop import train_run
    from pml_ext_train.training.run import Run

    folder = tmp_path_factory.mktemp("alphabets")
    random = np.random.default_rng(0)
    omniglot_zip(folder / omniglot.TRAIN, {"Greek": 7, "Latin": 5}, 4, random)
    omniglot_zip(folder / omniglot.TEST, {"Greek": 7, "Sanskrit": 11}, 4, random)
    (recipe,) = load_recipes(
        "cbml/omniglot-small",
        {
            "schedule.epochs": 2,
            "schedule.milestones": [1],
            "sampler.iterations": 2,
            "sampler.batch_size": 8,
            "sampler.m": 2,
            "model.trunk.width": 4,
            "data.split": "characters",
            "evaluation.protocols": ["nearest-class-mean", "zero-shot"],
        },
    ).values()
    counts = {"train": Count(48, 12), "test": Count(44, 11)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        patch.setattr(omniglot, "SMALL", dataclasses.replace(omniglot.SMALL, counts=counts))
        out = tmp_path_factory.mktemp("run")
        (out / "checkpoints").mkdir()
        run = Run(recipe, "cbml/omniglot-small", out, root=folder)
        return run, train_run(run, finish)


def test_every_fifth_character_is_tested(trained):
    run, _ = trained
    tested = {run.images("test").class_names[label] for label in run.images("test").labels}
    assert tested == {"Greek/character05", "Latin/character05", "Sanskrit/character05", "Sanskrit/character10"}
    seen = {run.images("train").class_names[label] for label in run.images("train").labels}
    assert len(seen) == 7 + 5 + 11 - 4
    assert not seen & tested
    assert run.data.parents["Greek/character05"] == ["Greek"]


def test_a_run_measures_with_its_protocols(trained):
    run, metrics = trained
    points = torch.nn.functional.normalize(run.embeddings("test")).double()
    labels = run.true_labels("test")
    first = torch.from_numpy(first_halves(labels.numpy(), run.seed))
    assert [int(first[labels == label].sum()) for label in labels.unique()] == [2] * 4
    near = nearest_class_mean(points[~first], labels[~first], *class_means(points[first], labels[first]))
    train = torch.nn.functional.normalize(run.embeddings("train")).double()
    seen, means = class_means(train, run.true_labels("train"))
    known = dict(zip([run.images("train").class_names[label] for label in seen], means, strict=True))
    names = [run.images("test").class_names[label] for label in labels.unique()]
    related = nearest_class_mean(points, labels, labels.unique(), related_means(names, known, run.data.parents))
    wanted = {f"ncm_{name}": value for name, value in near.items()}
    wanted |= {f"zero_shot_{name}": value for name, value in related.items()}
    assert {name: metrics["after"][name] for name in wanted} == pytest.approx(wanted)
    assert {"ncm_top_1", "zero_shot_top_5"} <= set(metrics["before"])
    assert metrics["after"]["zero_shot_top_1"] < 1  # both characters of Sanskrit have one estimate


def test_zero_shot_without_a_hierarchy_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'zero-shot' needs classes with parents, which digits does not have"):
        train(
            "cbml/digits", out=tmp_path / "out", overrides=typed(("evaluation.protocols=['zero-shot']",)), device="cpu"
        )


def test_a_hierarchy_of_wordnet_ids(tmp_path):
    path = tmp_path / "is_a.txt"
    path.write_text("n1 n2\nn3 n2\nn0 n1\n")
    assert read_wordnet_parents(path) == {"n2": ["n1", "n3"], "n1": ["n0"]}
    path.write_text("n1 n2\nn3\n")
    with pytest.raises(DataError, match="line 2: 'n3' does not have 2 columns"):
        read_wordnet_parents(path)


TRAINED = "a,0.png,train,,\na,1.png,train,,\nb,2.png,train,,\nb,3.png,train,,\n"
ALONE_IN_QUERIES = "c,4.png,validation,1,0\nd,5.png,validation,1,0\nd,6.png,validation,0,1\nd,7.png,validation,0,1\n"
ALONE = "c,4.png,validation,1,1\nd,5.png,validation,1,1\n"


@pytest.mark.parametrize("tested", [ALONE_IN_QUERIES, ALONE])
def test_class_without_a_mean_is_refused_before_training(tmp_path, tested):
    for number in range(8):
        Image.new("L", (8, 8), 30 * number).save(tmp_path / f"{number}.png")
    (tmp_path / "mine.csv").write_text(f"label,path,split,is_query,is_gallery\n{TRAINED}{tested}")
    overrides = [f"data.name=table:{tmp_path / 'mine.csv'}", "data.image_size=8", "sampler.batch_size=4", "sampler.m=2"]
    overrides.append("evaluation.protocols=['nearest-class-mean']")
    with pytest.raises(DataError, match="'nearest-class-mean' needs another image of c to compare with"):
        train("cbml/digits", out=tmp_path / "out", overrides=typed(overrides), device="cpu")

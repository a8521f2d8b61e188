"""All metrics from one search, against loops, PML's calculator and the parts they are made of."""

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch.nn.functional import normalize

from pml_ext.evaluation import (
    NearestNeighbors,
    default_neighbors,
    evaluate,
    kmeans,
    neighbors,
    neighbors_under,
    nmi,
    pairwise_f1,
    purity,
    reranked_under,
)


def data(count=80, classes=9, seed=0, lone=2, copies=6):
    """Classes of different sizes, some queries of no other's class, and exact duplicates of other classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, generator=generator).square() * classes).long()
    labels[:lone] = 1000 + torch.arange(lone)
    centers = torch.randn(1002, 6, generator=generator)
    points = normalize(torch.randn(count, 6, generator=generator) + centers[labels])
    points[10 : 10 + copies] = points[30 : 30 + copies]
    return points, labels


def ranked(query, gallery, itself):
    """Indices from near to far, by float64 distances; only where there are no duplicates is the order the search's."""
    distances = torch.cdist(query.double(), gallery.double(), compute_mode="donot_use_mm_for_euclid_dist")
    rows = distances.argsort(dim=1, stable=True).tolist()
    return [[j for j in row if not (itself and j == i)] for i, row in enumerate(rows)]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("lone_queries", ["miss", "drop"])
def test_metrics_equal_loops(separate, lone_queries):
    query, labels = data(copies=0)
    gallery, gallery_labels = data(40, 7, seed=1, copies=0) if separate else (query, labels)
    more = {"gallery": gallery, "gallery_labels": gallery_labels} if separate else {}
    result = evaluate(
        query,
        labels,
        **more,
        recall_at=(3, 1, 500),
        precision_at=(1, 5),
        lone_queries=lone_queries,
        ranking=("r_precision", "map_at_r", "map", "mrr"),
        clusters_per_class=(),
    )
    lists = {name: [] for name in result.metrics}
    for label, row in zip(labels.tolist(), ranked(query, gallery, not separate), strict=True):
        right = [bool(gallery_labels[j] == label) for j in row]
        relevant = sum(right)
        if relevant or lone_queries == "miss":
            for k in (1, 3, 500):
                lists[f"recall_at_{k}"].append(any(right[:k]))
        if not relevant:
            continue
        for k in (1, 5):
            lists[f"precision_at_{k}"].append(sum(right[:k]) / k)
        at = [sum(right[: j + 1]) / (j + 1) if hit else 0.0 for j, hit in enumerate(right)]
        lists["r_precision"].append(sum(right[:relevant]) / relevant)
        lists["map_at_r"].append(sum(at[:relevant]) / relevant)
        lists["map"].append(sum(at) / relevant)
        lists["mrr"].append(1 / (1 + right.index(True)))
    assert list(result.metrics) == [
        "recall_at_1",
        "recall_at_3",
        "recall_at_500",
        "precision_at_1",
        "precision_at_5",
        "r_precision",
        "map_at_r",
        "map",
        "mrr",
    ]
    for name, wanted in lists.items():
        assert result.metrics[name] == pytest.approx(sum(wanted) / len(wanted), abs=1e-12), name
        assert type(result.metrics[name]) is float


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("count", [80, 1500])
def test_values_are_pmls_to_the_last_digit(separate, count):
    query, labels = data(count, count // 8)
    gallery, gallery_labels = data(count // 2, count // 8, seed=1) if separate else (None, None)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r", *(("NMI",) if count < 100 else ())),
        k="max_bin_count",
        knn_func=default_neighbors(),
        kmeans_func=kmeans,
        device=torch.device("cpu"),
    )
    theirs = calculator.get_accuracy(query, labels, gallery, gallery_labels)
    mine = evaluate(
        query,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        recall_at=(1, 100),
        clusters_per_class=(1,) if count < 100 else (),
    ).metrics
    names = {"mean_average_precision_at_r": "map_at_r", "NMI": "nmi"}
    assert {names.get(name, name): value for name, value in theirs.items()} == {
        name: mine[name] for name in mine if name in {*theirs, *names.values()}
    }


@pytest.mark.parametrize(
    ("settings", "k"),
    [
        ({"recall_at": (1, 7), "ranking": ()}, 7),
        ({"recall_at": (1, 60), "precision_at": (70,)}, 70),
        ({"recall_at": (1,), "ranking": ("r_precision",)}, "largest class"),
        ({"ranking": ("map",)}, 79),
        ({"ranking": ("mrr",)}, 79),
        ({"recall_at": (500,)}, 79),
        ({"recall_at": (1,), "ranking": (), "keep": 5}, 5),
    ],
)
def test_one_search_for_as_many_neighbors_as_the_metrics_need(settings, k, watched):
    points, labels = data()
    evaluate(points, labels, search=watched, clusters_per_class=(), **settings)
    k = int(labels.bincount().max()) - 1 if k == "largest class" else k
    assert watched.asked == [(80, k + 1)]  # and the query itself


def test_clusters_alone_search_nothing(watched):
    result = evaluate(*data(), recall_at=(), precision_at=(), ranking=(), search=watched)
    assert list(result.metrics) == ["nmi", "f1", "purity"]
    assert watched.asked == []


@pytest.mark.parametrize("separate", [False, True])
def test_tiles_change_nothing(monkeypatch, separate, watched):
    points, labels = data(copies=0)  # a kernel may go with the number of rows, and with it the order of equals
    more = dict(zip(("gallery", "gallery_labels"), data(50, seed=3, copies=0), strict=True)) if separate else {}
    settings = {"ranking": ("map_at_r", "map", "mrr"), "clusters_per_class": (), "keep": 6, **more}
    whole = evaluate(points, labels, **settings)
    monkeypatch.setattr(neighbors, "_NEIGHBORS", 1000)
    tiled = evaluate(points, labels, search=watched, **settings)
    assert len(watched.asked) > 3
    assert all(rows * k < 2000 for rows, k in watched.asked)
    assert sum(rows for rows, _ in watched.asked) == 80
    assert tiled.metrics == whole.metrics
    torch.testing.assert_close(tiled.distances, whole.distances)
    for name in ("indices", "right", "relevant"):
        assert torch.equal(getattr(tiled, name), getattr(whole, name)), name
    torch.testing.assert_close(tiled.per_query, whole.per_query, rtol=0, atol=0, equal_nan=True)


def test_no_query_is_its_own_neighbor_in_any_tile(monkeypatch):
    points, labels = torch.zeros(50, 3), torch.arange(50) // 2  # a query need not be among so many duplicates
    for limit in (50, 1 << 20):
        monkeypatch.setattr(neighbors, "_NEIGHBORS", limit)
        result = evaluate(points, labels, clusters_per_class=(), recall_at=(4,), ranking=(), keep=4)
        assert result.indices.shape == (50, 4)
        assert not (result.indices == torch.arange(50)[:, None]).any()


def test_neighbors_that_are_kept():
    points, labels = data()
    distances, indices = default_neighbors()(points, 5, points, ref_includes_query=True)
    result = evaluate(points, labels, recall_at=(1, 20), clusters_per_class=(), keep=5)
    assert torch.equal(result.indices, indices)
    assert torch.equal(result.distances, distances)
    assert torch.equal(result.right, labels[indices] == labels[:, None])
    assert torch.equal(result.per_query["precision_at_1"], result.right[:, 0].double())
    assert result.relevant.tolist() == [int((labels == label).sum()) - 1 for label in labels]
    few = evaluate(points, labels, gallery=points[:3], gallery_labels=labels[:3], clusters_per_class=(), keep=5)
    assert few.indices.shape == few.distances.shape == few.right.shape == (80, 3)


def test_queries_that_are_part_of_a_gallery():
    points, labels = data()
    result = evaluate(
        points[:20],
        labels[:20],
        gallery=points,
        gallery_labels=labels,
        gallery_has_queries=True,
        clusters_per_class=(),
        keep=79,
    )
    whole = evaluate(points, labels, clusters_per_class=(), keep=79)
    wanted = {name: values[:20] for name, values in whole.per_query.items()}
    torch.testing.assert_close(result.per_query, wanted, rtol=0, atol=0, equal_nan=True)
    assert [sorted(row) for row in result.indices.tolist()] == [[j for j in range(80) if j != i] for i in range(20)]


def test_by_another_search():
    points, labels = data(copies=0)
    learned = LpDistance(normalize_embeddings=False, p=1)
    result = evaluate(points, labels, search=neighbors_under(learned), clusters_per_class=(), keep=3)
    wanted = learned(points).fill_diagonal_(math.inf).topk(3, largest=False)
    torch.testing.assert_close(result.distances, wanted.values)
    exact = evaluate(points, labels, search=reranked_under(learned, 80), clusters_per_class=())
    assert exact.metrics == pytest.approx(result.metrics, abs=1e-12)
    # One neighbor besides the query itself: what is missing counts as wrong.
    short = evaluate(points, labels, search=NearestNeighbors(missing), recall_at=(1, 8), clusters_per_class=())
    assert short.metrics["recall_at_8"] == short.metrics["recall_at_1"] > 0


def missing(query, k, reference):
    """As an approximate index does it: -1 where it has no more."""
    distances, indices = default_neighbors().search(query, k, reference)
    return distances, indices.masked_fill(torch.arange(indices.shape[1]) > 1, -1)


def test_clusters():
    points, labels = data(lone=0)
    result = evaluate(points, labels, recall_at=(), precision_at=(), ranking=(), clusters_per_class=(3, 1)).metrics
    assert list(result) == ["nmi", "f1", "purity", "nmi_3", "f1_3", "purity_3"]
    classes = len(labels.unique())
    for count, end in ((1, ""), (3, "_3")):
        clusters = kmeans(points, count * classes)
        assert result[f"nmi{end}"] == nmi(labels, clusters)
        assert result[f"f1{end}"] == pairwise_f1(labels, clusters)
        assert result[f"purity{end}"] == purity(labels, clusters)
    given = evaluate(points, labels, kmeans=lambda x, number: torch.arange(len(x)) % number).metrics
    assert given["purity"] == purity(labels, torch.arange(80) % classes)


def test_arrays_and_large_labels():
    points, labels = np.array([[0.0], [1.0], [0.1], [1.1]]), np.array([16777216, 16777216, 16777217, 16777217])
    result = evaluate(points, labels, recall_at=(1, 3), clusters_per_class=())
    assert result.metrics["recall_at_1"] == 0
    assert result.metrics["recall_at_3"] == 1


def test_a_single_image_and_lone_queries():
    alone = evaluate(torch.zeros(1, 2), torch.tensor([4]), keep=3)
    assert alone.metrics["recall_at_8"] == 0
    assert math.isnan(alone.metrics["map_at_r"])
    assert alone.metrics["purity"] == 1
    assert alone.indices.shape == (1, 0)
    dropped = evaluate(data()[0][:5], torch.arange(5), lone_queries="drop", clusters_per_class=())
    assert all(math.isnan(value) for value in dropped.metrics.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recall_at": (0,)}, "recall_at wants integers of at least 1, not 0"),
        ({"precision_at": (1.5,)}, "precision_at wants integers of at least 1, not 1.5"),
        ({"clusters_per_class": (True,)}, "clusters_per_class wants integers of at least 1, not True"),
        ({"keep": -1}, "keep wants integers of at least 0, not -1"),
        ({"lone_queries": "keep"}, "'miss' or 'drop', not 'keep'"),
        ({"ranking": ("map_at_k",)}, "no ranking metric 'map_at_k'; there are r_precision, map_at_r, map, mrr"),
        ({"labels": torch.zeros(79).long()}, r"embeddings want .* not shapes \[80, 6\] and \[79\]"),
        ({"labels": torch.zeros(80)}, "want integers as labels, not torch.float32; make them .long()"),
        ({"embeddings": torch.zeros(0, 6), "labels": torch.zeros(0).long()}, "N of at least 1"),
        ({"gallery": torch.zeros(3, 6)}, r"gallery want .* not shapes \[3, 6\] and \[0\]"),
        ({"gallery": torch.zeros(3, 5), "gallery_labels": torch.zeros(3).long()}, "5 dimensions, the embeddings 6"),
        ({"gallery_labels": torch.zeros(3)}, "go with a gallery"),
        (
            {"gallery": torch.zeros(90, 6), "gallery_labels": torch.zeros(90).long(), "gallery_has_queries": True},
            "must begin with them, all 80, and with their labels",
        ),
        ({"clusters_per_class": (40,)}, "clusters of 80 points"),
    ],
)
def test_wrong_arguments(settings, message):
    points, labels = data()
    with pytest.raises(ValueError, match=message):
        evaluate(**{"embeddings": points, "labels": labels, **settings})

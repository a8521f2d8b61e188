"""Instances of components: settings, what fills them, and settings that are components."""

import re
from pathlib import Path

import pytest
from pytorch_metric_learning import distances, losses, samplers
from torch.utils.data import Sampler

from pml_ext import registry
from pml_ext.building import BuildContext, filled, required
from pml_ext.errors import ConfigError

ROOT = Path(__file__).parents[1]


def test_unknown_settings_are_refused_before_the_class_sees_them():
    with pytest.raises(ConfigError, match="no setting of pml/triplet-margin 'margn'; nearest: margin"):
        registry.build("pml/triplet-margin", "loss", margn=0.1)
    assert {"margin", "reducer", "distance", "collect_stats"} <= set(
        registry.get("pml/triplet-margin", "loss").settings
    )


def test_settings_that_are_components_are_built():
    loss = registry.build(
        "pml/contrastive", "loss", distance={"name": "pml/lp", "power": 2}, embedding_regularizer={"name": "pml/lp"}
    )
    assert isinstance(loss.distance, distances.LpDistance)
    assert loss.distance.power == 2
    assert type(loss.embedding_regularizer).__name__ == "LpRegularizer"


class Metric(distances.CosineSimilarity):
    """A distance with parameters of a size."""

    def __init__(self, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.embedding_size = embedding_size


class Wanting:
    """Something with every kind of setting."""

    def __init__(
        self,
        embedding_size,
        words,
        metric: Metric,
        base: distances.BaseDistance,
        sampler: Sampler,
        num_classes=7,
        class_labels=None,
        collect_stats=False,
        seed=3,
    ):
        pass


def test_what_a_context_fills():
    context: BuildContext = {"embedding_size": 8, "num_classes": 2, "class_labels": [4, 5], "seed": 9}
    values, missing = required(Wanting, context)
    assert values.keys() == {"embedding_size", "metric"}
    assert (values["embedding_size"], values["metric"].embedding_size) == (8, 8)
    assert missing == ["words", "base", "sampler"]  # of a base class any component will do: somebody has to say which
    assert filled(Wanting, context).keys() == {"embedding_size", "metric", "class_labels", "seed"}
    given = filled(Wanting, context, given=["metric", "seed"])
    assert given == {"embedding_size": 8, "class_labels": [4, 5]}


def test_a_sampler_gets_what_it_has_a_default_for():
    context: BuildContext = {"labels": [0, 0, 1, 1], "batch_size": 4, "length_before_new_iter": 8, "seed": 0}
    sampler = registry.build("pml/m-per-class", "sampler", context, m=2)
    assert isinstance(sampler, samplers.MPerClassSampler)
    assert (sampler.batch_size, len(sampler)) == (4, 8)
    assert len(registry.build("pml/m-per-class", "sampler", context, m=2, length_before_new_iter=12)) == 12


def test_a_context_reaches_the_components_in_settings():
    context: BuildContext = {"num_classes": 2, "class_labels": [30, 40], "collect_stats": True}
    loss = registry.build(
        "regularized", "loss", context, loss={"name": "pml/contrastive"}, regularizer={"name": "density"}
    )
    assert loss.regularizer.sorted_labels.tolist() == [30, 40]
    assert (loss.collect_stats, loss.loss.collect_stats) == (True, losses.ContrastiveLoss().collect_stats)


def test_a_misspelt_name_in_a_context_is_refused():
    with pytest.raises(ConfigError, match="no name of a BuildContext 'embeding_size'; nearest: embedding_size"):
        registry.build("pml/proxy-anchor", "loss", {"num_classes": 2, "embeding_size": 4})


def test_the_page_for_authors_lists_every_name():
    page = (ROOT / "docs" / "plugins.md").read_text()
    table = page.partition("## Settings that nobody writes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == list(BuildContext.__annotations__)

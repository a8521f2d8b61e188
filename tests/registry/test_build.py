"""Construction of components: settings that are refused, filled in, converted, or components themselves."""

import pytest
import torch
from pytorch_metric_learning import distances, losses

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.registry import BuildContext, fill_settings


@pytest.mark.parametrize(
    ("name", "context", "settings", "text"),
    [
        ("pml/triplet-margin", {}, {"margn": 0.1}, "no setting of pml/triplet-margin 'margn'; nearest: margin"),
        ("pml/proxy-anchor", {"num_classes": 2, "embeding_size": 4}, {}, "'embeding_size'; nearest: embedding_size"),
    ],
)
def test_unknown_settings_and_context_names_are_refused(name, context, settings, text):
    with pytest.raises(ConfigError, match=text):
        registry.build(name, "loss", context, **settings)


def test_settings_that_are_components_are_built():
    more = {"distance": {"name": "pml/lp", "power": 2}, "embedding_regularizer": {"name": "pml/lp"}}
    loss = registry.build("pml/contrastive", "loss", **more)
    assert isinstance(loss.distance, distances.LpDistance)
    assert loss.distance.power == 2
    assert type(loss.embedding_regularizer).__name__ == "LpRegularizer"


def wanting(embedding_size, words, metric: pml_ext.PDDMDistance, base: distances.BaseDistance, num_classes=7, seed=3):
    """Something with every kind of setting."""


def test_context_fills_the_missing_settings():
    context: BuildContext = {"embedding_size": 8, "num_classes": 2, "seed": 9}
    values, missing = fill_settings(wanting, context)
    assert values.keys() == {"embedding_size", "metric", "seed"}
    assert values["metric"].embedding_size == 8
    assert missing == ["words", "base"]  # of a base class any component will do: somebody has to say which
    assert fill_settings(wanting, context, given=["metric", "seed"])[0] == {"embedding_size": 8}


def test_a_context_reaches_the_components_in_settings():
    context: BuildContext = {"num_classes": 2, "class_labels": [30, 40], "collect_stats": True}
    parts = {"loss": {"name": "pml/contrastive"}, "regularizer": {"name": "density"}}
    loss = registry.build("regularized", "loss", context, **parts)
    assert loss.regularizer.classes.ordered.tolist() == [30, 40]
    assert (loss.collect_stats, loss.loss.collect_stats) == (True, losses.ContrastiveLoss().collect_stats)


def test_class_weights_follow_the_order_of_labels():
    reducer = registry.build("pml/class-weighted", "reducer", {"class_labels": [1, 3]}, weights=[0.5, 2])
    torch.testing.assert_close(reducer.weights, torch.tensor([0, 0.5, 0, 2], dtype=torch.float64))
    with pytest.raises(ConfigError, match="weights of pml/class-weighted must be numbers, .* got \\['a'\\]"):
        registry.build("pml/class-weighted", "reducer", weights=["a"])


def test_subclass_of_a_pml_reducer_is_converted(isolated_registry):
    """No class is known by its name."""
    from pytorch_metric_learning.reducers import ClassWeightedReducer

    class MineReducer(ClassWeightedReducer):
        """A reducer with weights of classes."""

    pml_ext.register(MineReducer)
    reducer = registry.build("mine", "reducer", {"class_labels": [1]}, weights=[0.5])
    assert reducer.weights.tolist() == [0, 0.5]

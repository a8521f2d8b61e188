"""The door to pytorch-metric-learning: bases, their settings, and what PML 3 takes away."""

import inspect

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers

from pml_ext import pml
from pml_ext.settings import settings_of

OF_PML = {"loss": losses, "miner": miners, "regularizer": regularizers, "distance": distances, "reducer": reducers}


@pytest.mark.parametrize("kind", OF_PML)
def test_every_class_of_pml_has_its_kind(kind):
    classes = [each for each in vars(OF_PML[kind]).values() if isinstance(each, type)]
    known = [each for each in classes if issubclass(each, torch.nn.Module) and each is not distances.BatchedDistance]
    assert len(known) > 4
    for cls in known:
        assert [name for name, bases in pml.BASES.items() if issubclass(cls, bases)] == [kind], cls


def test_settings_are_the_keyword_arguments_of_the_bases():
    tables = {
        losses.BaseMetricLossFunction: pml.LossSettings,
        miners.BaseMiner: pml.MinerSettings,
        regularizers.BaseRegularizer: pml.RegularizerSettings,
    }
    for base, table in tables.items():
        assert set(inspect.get_annotations(table)) | set(table.__annotations__) == set(settings_of(base))


def test_the_mean_of_an_anchor_counts_its_values():
    values = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    assert pml.per_anchor_mean(values, torch.tensor([2, 0])).tolist() == [2.0, 0.0]


def test_a_name_that_is_imported_later_is_pmls():
    from pytorch_metric_learning.utils.inference import FaissKNN

    assert pml.FaissKNN is FaissKNN
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = pml.Nothing

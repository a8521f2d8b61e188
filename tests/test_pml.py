"""The door to pytorch-metric-learning: bases, their settings, and what PML 3 takes away."""

import inspect
import sys
import types

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers

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


@pytest.mark.parametrize("with_references", [False, True])
def test_lists_of_pairs_and_triplets_equal_pmls(with_references):
    from pytorch_metric_learning.utils import loss_and_miner_utils as of_pml

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (17,), generator=generator)
    references = torch.randint(4, (11,), generator=generator) if with_references else None
    pairs = of_pml.get_all_pairs_indices(labels, references)
    triplets = of_pml.get_all_triplets_indices(labels, references)
    assert len(triplets[0]) > 100
    for wanted, found in (
        (pairs, pml.get_all_pairs_indices(labels, references)),
        (triplets, pml.get_all_triplets_indices(labels, references)),
        (of_pml.convert_to_pairs(triplets, None), pml.convert_to_pairs(triplets)),
        (of_pml.convert_to_triplets(pairs, None), pml.convert_to_triplets(pairs)),
        (pairs, pml.convert_to_pairs(pairs)),
        (triplets, pml.convert_to_triplets(triplets)),
    ):
        assert len(wanted) == len(found)
        assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    same = pml.get_all_pairs_indices(labels, labels)
    assert all(map(torch.equal, same, of_pml.get_all_pairs_indices(labels, labels)))
    assert not (same[0] == same[1]).any()


def test_a_name_that_is_imported_later_is_pmls():
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import FaissKNN

    assert pml.FaissKNN is FaissKNN
    assert pml.EQUALITY is AccuracyCalculator().label_comparison_fn
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = pml.Nothing


def test_names_moved_by_pml_3_are_found(monkeypatch):
    """A double has the one module of PML 3 whose address and names its documentation gives."""
    names = ("AccuracyCalculator", "CustomKNN", "FaissKMeans", "FaissKNN")
    evaluation = types.ModuleType("pytorch_metric_learning.evaluation")
    for name in names:
        setattr(evaluation, name, type(name, (), {}))
    monkeypatch.setitem(sys.modules, evaluation.__name__, evaluation)
    monkeypatch.setattr(pml, "MAJOR", 3)
    for name in names:
        assert getattr(pml, name) is getattr(evaluation, name)
    for name in ("HookContainer", "MetricLossOnly", "common_functions"):
        with pytest.raises(AttributeError, match=f"pytorch-metric-learning 3 has no {name}, which version 2 had"):
            getattr(pml, name)


def test_weights_of_another_length_have_labels_as_indices():
    settings = {"weights": [1, 2, 3]}
    assert pml.converted_settings(reducers.ClassWeightedReducer, settings, [5, 7])["weights"].tolist() == [1, 2, 3]
    assert pml.converted_settings(reducers.MeanReducer, settings, [5, 7, 8]) == settings
    assert settings == {"weights": [1, 2, 3]}


WEIGHTED = losses.ContrastiveLoss(reducer=reducers.ClassWeightedReducer(torch.ones(3)))


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda: pml.check_sampler(samplers.HierarchicalSampler, {}, 8, 4), "pml/hierarchical needs labels of two lev"),
        (
            lambda: pml.check_sampler(samplers.MPerClassSampler, {"m": 3}, 16, 4),
            "found batch_size = 16; 4 classes x m = 3 gives at most 12 images a batch",
        ),
        (
            lambda: pml.check_class_weights(WEIGHTED, [4], 4),
            "weights of pml/class-weighted must be 4 numbers, .*; got 3",
        ),
    ],
)
def test_unusable_samplers_and_weights_are_refused(check, text):
    with pytest.raises(ValueError, match=text):
        check()


def test_samplers_and_weights_that_fit_are_accepted():
    pml.check_sampler(samplers.MPerClassSampler, {"m": 4}, 16, 4)
    pml.check_sampler(samplers.FixedSetOfTriplets, {"m": 3}, 16, 4)
    pml.check_class_weights(WEIGHTED, [3, 7], 3)
    pml.check_class_weights(losses.ContrastiveLoss(), [4], 4)

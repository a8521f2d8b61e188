"""The parts of pytorch-metric-learning that ``pml_ext`` builds on: with another version, a failure names the change."""

import inspect

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers

from pml_ext import pml

EMBEDDINGS = torch.eye(4, requires_grad=True)
LABELS = torch.tensor([0, 0, 1, 1])


LOSS, MINER = "self embeddings labels indices_tuple ref_emb ref_labels", "self embeddings labels ref_emb ref_labels"
KINDS_OF_VALUES = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (losses.BaseMetricLossFunction.forward, LOSS),
        (losses.ContrastiveLoss.compute_loss, LOSS),
        (miners.BaseMiner.forward, MINER),
        (miners.BaseMiner.mine, MINER),
        (distances.BaseDistance.compute_mat, "self query_emb ref_emb"),
        (regularizers.BaseRegularizer.forward, "self x"),
        (regularizers.LpRegularizer.compute_loss, "self embeddings"),
        (samplers.MPerClassSampler.__init__, "self labels m batch_size length_before_new_iter"),
        *[
            (getattr(reducers.BaseReducer, f"{kind}_reduction"), "self losses loss_indices embeddings labels")
            for kind in KINDS_OF_VALUES
        ],
    ],
)
def test_arguments_and_their_order(function, wanted):
    assert list(inspect.signature(function).parameters)[: len(wanted.split())] == wanted.split()


def test_the_batch_itself_is_passed_as_its_own_reference():
    class Loss(losses.BaseMetricLossFunction):
        def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
            self.alone = ref_emb is embeddings and ref_labels is labels
            return self.zero_losses()

    loss = Loss()
    value = loss(EMBEDDINGS, LABELS)
    assert loss.alone
    assert value == 0
    assert value.requires_grad
    assert loss.zero_losses() == {"loss": {"losses": 0, "indices": None, "reduction_type": "already_reduced"}}
    loss(EMBEDDINGS, LABELS, ref_emb=EMBEDDINGS.clone(), ref_labels=LABELS.clone())
    assert not loss.alone


@pytest.mark.parametrize(("kind", "count"), [("element", 0), ("pos_pair", 2), ("neg_pair", 2), ("triplet", 3)])
def test_a_term_has_values_indices_a_kind_and_perhaps_a_divisor(kind, count):
    indices = tuple(torch.arange(2) for _ in range(count)) or torch.arange(2)
    term = {"loss": {"losses": torch.tensor([1.0, 3.0]), "indices": indices, "reduction_type": kind, "divisor": 8}}
    assert reducers.MeanReducer()(term, EMBEDDINGS, LABELS) == 2
    assert reducers.DivisorReducer()(term, EMBEDDINGS, LABELS) == 0.5


def test_statistics_are_recorded_by_these():
    module = pml.ModuleWithRecords(collect_stats=True)
    module.add_to_recordable_attributes(name="fixed", is_stat=False)
    module.add_to_recordable_attributes(list_of_names=["seen"], is_stat=True)
    assert (module._record_these, module._record_these_stats) == (["fixed"], ["seen"])
    module.seen = 3
    module.reset_stats()
    assert module.seen == 0

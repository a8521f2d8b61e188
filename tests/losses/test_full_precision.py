"""Losses compute in float32 or float64, whatever they are given."""

import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    MetricVarianceRegularizer,
    MultipleLosses,
    NPairLoss,
    RegularizedLoss,
    registry,
)
from pml_ext.losses.full_precision import FullPrecisionForward

from .registered import registered


def test_never_sums_in_half_precision(batch):
    x, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = MultipleLosses([losses.MultiSimilarityLoss(), CBMLLoss()])(x, labels)
    assert value.dtype == torch.float32


def short_rows(seed):
    """16 rows of float16 whose lengths are between 1e-8 and 1, and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(16, 4, generator=generator))
    rows = rows * 10 ** (-8 * torch.rand(16, 1, generator=generator))
    return rows.half().requires_grad_(), torch.randint(0, 6, (16,), generator=generator)


@pytest.mark.filterwarnings("ignore:a class of the batch has")
@pytest.mark.parametrize("inside_memory", [False, True])
@pytest.mark.parametrize("name", list(registered()))
def test_short_rows_of_float16_have_finite_gradients(name, inside_memory):
    loss = registered()[name]
    if inside_memory and "references" not in registry.capabilities(loss):
        pytest.skip("takes no references")
    loss = CrossBatchMemory(loss, 4, 32) if inside_memory else loss
    for seed in range(20):
        x, labels = short_rows(seed)
        (gradient,) = torch.autograd.grad(loss(x, labels), x)
        assert gradient.isfinite().all()


class Labeled(FullPrecisionForward, BaseMetricLossFunction):
    """A loss that takes labels alone, and keeps what it was given."""

    capabilities = frozenset({"labels"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        self.given = embeddings, labels, torch.is_autocast_enabled("cpu")
        value = embeddings.square().sum(1)
        return {"loss": {"losses": value, "indices": torch.arange(len(value)), "reduction_type": "element"}}

    def _sub_loss_names(self):
        return ["loss"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_loss_gets_full_precision_without_autocast(dtype):
    loss = Labeled()
    x = torch.tensor([[300.0, 1.0], [200.0, 2.0]], dtype=dtype)  # float16 ends at 65,504
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, torch.tensor([True, False]))
    embeddings, labels, autocast = loss.given
    assert embeddings.dtype == value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (labels.dtype, autocast) == (torch.int64, False)
    assert value == (300**2 + 1 + 200**2 + 4) / 2


def test_what_a_loss_does_not_take_is_refused(batch):
    x, labels = batch
    for given in ((x,), (x, labels, (labels, labels, labels)), (x, labels, None, x, labels)):
        with pytest.raises(ValueError, match="Labeled takes embeddings and labels, no indices_tuple and no references"):
            Labeled()(*given)
    with pytest.raises(TypeError, match=r"labels must be a tensor of integers .* type labels.long\(\)"):
        Labeled()(x, labels.float())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_number_anywhere_shows_in_the_value(batch, bad):
    x, labels = batch
    x = x.detach().clone()
    x[5, 2] = bad
    loss = RegularizedLoss(losses.TripletMarginLoss(), MetricVarianceRegularizer())
    assert loss(x, torch.arange(12)).isnan()  # no row has a partner
    assert loss(x.nan_to_num(0, 0, 0), torch.arange(12), None, x, labels).isnan()


def test_short_float16_embeddings_keep_their_gradients(batch):
    """The least length of a row is for losses that normalize; a wrapper asks the loss inside."""
    x = torch.zeros(8, 4).half()
    x[:, 0] = torch.arange(8) * 2.0**-10
    x.requires_grad_()
    labels = torch.arange(8) // 2
    raw = NPairLoss(normalize_embeddings=False)
    regularizer = LpRegularizer()
    wanted = torch.autograd.grad(raw(x.float(), labels) + regularizer(x.float()), x)[0]
    found = torch.autograd.grad(RegularizedLoss(raw, regularizer)(x, labels), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-4)

"""Checks of a batch, and the precision in which it is computed."""

import re

import numpy as np
import pytest
import torch

import pml_ext
from pml_ext import NegativesOnly, RetrievalAccuracyCalculator, TiledContrastiveLoss, pairwise


@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "text"),
    [
        (torch.ones(2, 2, dtype=torch.long), None, TypeError, r"floating point .* \(2, 2\) and dtype torch.int64"),
        (torch.ones(4), None, ValueError, r"two dimensions, \(batch size, embedding size\); got .* \(4,\)"),
        (torch.ones(4, 2), [0, 1, 0, 1], TypeError, r"labels .* integers of shape \(4,\).* got a list of length 4"),
        (torch.ones(4, 2), torch.ones(4), TypeError, r"of integers .* dtype torch.float32; type labels.long\(\)"),
        (torch.ones(4, 2), torch.arange(3), ValueError, r"shape \(4,\).* got a tensor of shape \(3,\)"),
    ],
)
def test_check_batch_refuses_wrong_shapes(embeddings, labels, error, text):
    with pytest.raises(error, match=text):
        pairwise.check_batch(embeddings, labels)


def test_check_references_refuses_wrong_shapes():
    with pytest.raises(ValueError, match=r"ref_emb must have the embedding size of embeddings, 2; got .* \(3, 5\)"):
        pairwise.check_references(torch.ones(4, 2), torch.ones(3, 5), torch.arange(3))


def test_half_is_raised_to_full_precision():
    for given in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        wanted = torch.float64 if given == torch.float64 else torch.float32
        assert pairwise.to_full_precision(torch.ones(2, dtype=given)).dtype == wanted
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0**-10]]).half().requires_grad_()
    (gradient,) = torch.autograd.grad(pairwise.to_full_precision(rows, normalized=True).sum(), rows)
    assert gradient.tolist() == [[1, 1], [0.25, 0.25]]  # the second row counts as one of length 2^-8
    half = torch.ones(2, 2).half()
    first, second = pairwise.pair_to_full_precision(half, half)
    assert first is second
    assert pairwise.pair_to_full_precision(half, None)[1] is None
    first, second = pairwise.pair_to_full_precision(half, torch.ones(2, 2).double())
    assert first.dtype == second.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_finite_input_leaves_the_value(dtype):
    greatest = torch.finfo(dtype).max
    assert pairwise.with_bad_input(torch.tensor(3.0), torch.tensor([[-greatest, greatest]], dtype=dtype)) == 3


class Doubled(torch.autograd.Function):
    """Twice a tensor; a number that is not finite is an error."""

    @staticmethod
    def forward(ctx, x, times):
        if not x.isfinite().all():
            raise RuntimeError("no number")
        return times * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


def test_a_function_is_replaced_only_under_transforms():
    calls = []

    def plain(x, times):
        calls.append(times)
        return times * x

    def doubled(x):
        return pairwise.apply_or_plain(Doubled, plain, x, 2)

    x = torch.tensor([1.0, 3.0], requires_grad=True)
    assert doubled(x).tolist() == [2, 6]
    assert not calls
    assert torch.func.jvp(doubled, (x,), (x,))[1].tolist() == [2, 6]
    assert torch.func.vmap(doubled)(x).tolist() == [2, 6]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch.autograd.forward_ad.unpack_dual(doubled(dual)).tangent.tolist() == [2, 6]
    assert calls == [2, 2, 2]
    with pytest.raises(RuntimeError, match="no number"):  # an error of the function itself
        doubled(torch.tensor([torch.inf]))
    assert calls == [2, 2, 2]


def test_float64_on_a_device_without_it(monkeypatch):
    """The meta device stands for Apple's GPU, which refuses tensors of float64."""
    modules = [
        pml_ext.CBMLLoss(statistics="auto"),
        pml_ext.DensityRegularizer(num_classes=3),
        pml_ext.CBMLLoss(relation=pml_ext.Near(1, numbers=[0.0, 2.0, 1.0])),
    ]
    monkeypatch.setattr("pml_ext.pairwise.batch._WITHOUT_FLOAT64", {"meta"})
    for module in modules:
        assert torch.float64 in {buffer.dtype for buffer in module.to("cpu").buffers()}
        module.to("meta")
        assert torch.float64 not in {buffer.dtype for buffer in module.buffers()}
    assert pml_ext.Near(1, numbers=[0.0, 2.0, 1.0]).weights(*torch.zeros(2, 3, device="meta")).dtype == torch.float32
    assert pml_ext.Near(1).tensor([0.5], 1, "meta").dtype == torch.float32


TEXTS = ["a", "a", "b", "b"]
ENCODED = "encode the labels of all items once: torch.as_tensor(numpy.unique({}, return_inverse=True)[1])"
AS_TENSOR = "type torch.as_tensor(numpy.asarray({}))"


def labels_that_are_no_tensors():
    pandas = pytest.importorskip("pandas")
    index = range(7, 11)
    yield TEXTS, "a list of texts of length 4", ENCODED
    yield np.array(TEXTS), "an array of texts of shape (4,) and dtype <U1", ENCODED
    yield pandas.Series(TEXTS, index=index), "a Series of texts of shape (4,)", ENCODED
    yield pandas.Series(TEXTS, index=index, dtype="category"), "a Series of texts of shape (4,)", ENCODED
    yield pandas.Series([0, 0, 1, 1], index=index), "a Series of shape (4,) and dtype int64", AS_TENSOR


def test_labels_as_lists_get_a_remedy():
    points = torch.randn(4, 3)
    calculator = RetrievalAccuracyCalculator(("recall_at_1",))
    for labels, found, remedy in labels_that_are_no_tensors():
        calls = {
            "labels": lambda labels=labels: TiledContrastiveLoss()(points, labels),
            "query_labels": lambda labels=labels: calculator.get_accuracy(points, labels),
        }
        for name, call in calls.items():
            with pytest.raises(TypeError) as caught:
                call()
            text = str(caught.value)
            assert found in text
            assert text.endswith(remedy.format(name))
            assert "\n" not in text
        with pytest.raises(TypeError, match=re.escape(remedy.format("labels"))):
            TiledContrastiveLoss(relation=NegativesOnly())(points, labels)


def test_what_a_remedy_says_works():
    for labels, _, _ in labels_that_are_no_tensors():
        encoded = torch.as_tensor(np.unique(labels, return_inverse=True)[1])
        assert encoded.tolist() == [0, 0, 1, 1]
        assert bool(TiledContrastiveLoss()(torch.randn(4, 3), encoded).isfinite())

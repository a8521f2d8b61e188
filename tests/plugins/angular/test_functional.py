"""The equations of angular losses on matrices, against loops over coordinates."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext.losses.classes import class_members
from pml_ext_angular import functional

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])
PAIRS = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([1, 0, 4, 2, 2, 3])


def points(count=6, size=4, unit=True):
    x = torch.randn(count, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.normalize(x) if unit else x


def between_of(similarity):
    """The products of distinct partners, and each partner's row in them."""

    def between(partners):
        used, rows = torch.unique(partners, return_inverse=True)
        return similarity[used], rows

    return between


@pytest.mark.parametrize("with_n_pair", [False, True])
@pytest.mark.parametrize("small", [0, 100])
def test_products_have_derivatives_of_any_order_and_mode(small, with_n_pair):
    similarity = (points() @ points().T).requires_grad_()
    mask = LABELS[:, None] != LABELS
    classes = class_members(LABELS, small=small)

    def compute(matrix):
        return functional.log_sums_of_products(matrix, mask, classes, *PAIRS, 0.5, with_n_pair=with_n_pair)

    assert gradcheck(compute, similarity, check_forward_ad=True)
    assert gradgradcheck(compute, similarity)


SUMS = {
    "pairs": lambda matrix, mask: functional.log_sums_of_pairs(matrix, mask, *PAIRS),
    "rows": lambda matrix, mask: functional.log_sums_of_rows(matrix, between_of(matrix), mask, *PAIRS, 1.0),
    "products": lambda matrix, mask: functional.log_sums_of_products(matrix, mask, None, *PAIRS, 4.0),
    "products by class": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, class_members(LABELS, small=0), *PAIRS, 0.125
    ),
    "products with N-pair": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, None, *PAIRS, 1.0, with_n_pair=True
    ),
}


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_without_negatives_have_no_gradient(sums, dtype):
    """Neither a first nor a second one; the loss is the logarithm of 1."""
    similarity = (points() @ points().T).to(dtype).requires_grad_()
    found = sums(similarity, torch.zeros(6, 6, dtype=torch.bool))
    assert (found < -1e36).all()
    loss = torch.nn.functional.softplus(found).sum()
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, similarity, create_graph=True)
    assert gradient.tolist() == torch.zeros(6, 6).tolist()
    assert not torch.autograd.grad(gradient.square().sum() + gradient.sum(), similarity)[0].any()

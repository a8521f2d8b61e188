"""Matrices of pairs: normalization and distances, masks, numbers in place of masked values, and sums of rows."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext import pairwise
from pml_ext.pairwise import batch, similarity


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_normalize_is_torchs_to_the_last_digit(dtype):
    angles = torch.arange(180.0).deg2rad()  # one of them 90 degrees: products near 0 show every digit
    x = torch.stack([2 * angles.cos(), angles.sin() / 2], dim=1).to(dtype)
    x = torch.cat([x, x * 1e-3])[:-1]
    in_full_precision = x.float() if dtype == torch.float16 else x
    assert torch.equal(pairwise.normalize(x), torch.nn.functional.normalize(in_full_precision).to(dtype))


def test_normalize_has_the_gradient_of_torchs():
    draw = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(5, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    x *= torch.tensor([1e4, 1, 1e-3, 1e-5, 3e-6], dtype=torch.float64)[:, None]
    gradients = []
    for function in (pairwise.normalize, similarity._written_out, torch.nn.functional.normalize):
        z = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad((function(z) * weights).sum(), z)[0])
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[2], rtol=1e-10, atol=1e-12)
    z = x[:3].requires_grad_()
    assert gradcheck(pairwise.normalize, z / z.detach().norm(dim=1, keepdim=True), check_forward_ad=True)
    assert gradgradcheck(pairwise.normalize, z / z.detach().norm(dim=1, keepdim=True))


@pytest.mark.parametrize("euclidean", [False, True])
@pytest.mark.parametrize("used", ["rows", "matrix", "both"])
def test_rows_and_matrix_have_one_gradient(euclidean, used):
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[3] = 0
    x[4] = 2 * x[5]  # equal once they are normalized
    x.requires_grad_()
    rows = pairwise.normalize(x)
    separate = rows, pairwise.euclidean_distances(rows) if euclidean else pairwise.gram(rows)
    values = []
    for rows, matrix in (pairwise.normalized_matrix(x, euclidean), separate):
        chosen = {"rows": [rows], "matrix": [matrix], "both": [rows, matrix]}[used]
        values.append(sum((each.cos() * torch.arange(each.shape[1])).sum() for each in chosen))
    torch.testing.assert_close(*values, rtol=1e-14, atol=0)
    (gradient,) = torch.autograd.grad(values[0], x, retain_graph=True)  # by the one backward pass
    slopes = [torch.autograd.grad(each, x, create_graph=True)[0] for each in values]
    torch.testing.assert_close(gradient, slopes[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    curvatures = [torch.autograd.grad(each.square().sum(), x)[0] for each in slopes]
    torch.testing.assert_close(*curvatures, rtol=1e-9, atol=1e-9)


def test_shorter_rows_have_a_bounded_gradient():
    x = torch.tensor([[3e-9, 4e-9], [3e-14, 4e-14], [0.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for function in (pairwise.normalize, similarity._written_out):
        z = x.clone().requires_grad_()
        y = function(z)
        torch.testing.assert_close(y.detach(), torch.nn.functional.normalize(x))
        (gradient,) = torch.autograd.grad((y * weights).sum(), z)
        along = torch.tensor([1.0, 0.0], dtype=torch.float64) - 0.6 * torch.tensor([0.6, 0.8], dtype=torch.float64)
        torch.testing.assert_close(gradient[0], along * 1e6)  # the projection, by 1e-6 where it was 5e-9
        torch.testing.assert_close(gradient[1], weights[1] * 1e6)  # divided by a constant: no projection
        assert gradient[2].tolist() == [0.0, 0.0]


def test_distances_of_normalized_rows_are_exact():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, 5, generator=generator, dtype=torch.float64) for rows in (7, 4))
    y[0] = x[2] + 1e-3  # near
    y[1] = 4 * x[4]  # equal, once normalized
    x = pairwise.normalize(x)
    y = pairwise.normalize(y)
    expected = torch.stack([(row - other).norm() for row in x for other in y]).view(7, 4)
    torch.testing.assert_close(pairwise.euclidean_distances(x, y), expected, rtol=1e-12, atol=1e-15)
    assert pairwise.euclidean_distances(x, y)[4, 1] == 0
    assert torch.equal(pairwise.euclidean_distances(x).diagonal(), torch.zeros(7, dtype=torch.float64))


@pytest.mark.parametrize("distance", [0.0, 0.01, 0.05, 0.1])
def test_the_only_near_pair_is_exact(distance):
    x = torch.eye(6)
    x[1] = x[0] + distance * x[2]
    x = pairwise.normalize(x)
    expected = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").float()
    torch.testing.assert_close(pairwise.euclidean_distances(x), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("normalized", [True, False])
def test_a_single_near_pair_among_rows_of_nan(normalized):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = pairwise.normalize(x)
    x[1] = x[0]
    x[3:] = torch.nan
    x = x.to(torch.float32 if normalized else torch.float64)
    x[1, 1] += 1e-5
    found = pairwise.euclidean_distances(x, normalized=normalized)[0, 1]
    torch.testing.assert_close(found, (x[0] - x[1]).norm(), rtol=1e-6, atol=0)


def test_self_pairs_are_left_out_only_without_references():
    same = torch.tensor([0, 1])
    indices = (same, torch.tensor([0, 0]), same, torch.tensor([2, 1]))
    positives, negatives = pairwise.pair_masks(torch.empty(3, 3), None, indices)
    assert positives.nonzero().tolist() == [[1, 0]]
    assert negatives.nonzero().tolist() == [[0, 2]]
    positives, _ = pairwise.pair_masks(torch.empty(3, 3), None, indices, has_references=True)
    assert positives.nonzero().tolist() == [[0, 0], [1, 0]]


def test_what_is_missing_is_named():
    for call, text in (
        (lambda: pairwise.pair_masks(torch.empty(3, 3), None), r"^labels must be given where no indices_tuple is"),
        (
            lambda: pairwise.pair_masks(torch.empty(3, 3), torch.arange(3), has_references=True),
            r"^ref_labels must be given",
        ),
        (
            lambda: pairwise.pair_masks(torch.empty(3, 3), None, (torch.arange(1),) * 2),
            r"three index tensors .* or four .* got 2",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_the_inequalities_of_hard_pairs_are_strict():
    similarity = torch.tensor([[1.0, 0.75, 0.5]])
    masks = torch.tensor([[[False, True, False]], [[False, False, True]]])  # a positive and a negative
    assert not pairwise.hard_pair_masks(similarity, masks, 0.25).any()
    assert torch.equal(pairwise.hard_pair_masks(similarity, masks, 0.26), masks)


def test_hard_pairs_of_rows_that_lack_some():
    similarity = torch.tensor([[0.5, 0.25, 0.5], [0.5, 0.25, 0.5], [0.5, torch.nan, 0.5]])
    positives = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    negatives = torch.tensor([[False, False, False], [True, True, True], [False, True, False]])
    hard = pairwise.hard_pair_masks(similarity, torch.stack((positives, negatives)))
    assert not hard[:, :2].any()  # without negatives, or without positives
    assert torch.equal(hard[:, 2], torch.stack((positives, negatives))[:, 2])  # NaN is left in


@pytest.mark.parametrize("anchor", [-1, 4])
def test_anchors_outside_of_the_batch_are_refused(anchor):
    rows = torch.tensor([0, anchor]), torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([3, 3])
    with pytest.raises(IndexError, match=f"has anchors .*{anchor}.*, and the batch has rows 0 to 3"):
        pairwise.PairsOfRows(torch.device("cpu"), None, rows, None, has_references=False, rows=4)


@pytest.mark.parametrize("shape", [(3, 5), (256, 128), (330, 104), (400, 91)])  # the second and third by words
def test_places_in_a_mask_are_those_of_torch(shape):
    masks = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.02, 0.5])[:, None, None]
    for mask in (*masks, *masks.float()):
        for found, expected in zip(pairwise.places_in(mask), torch.where(mask), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_is_made_once_for_each_dtype(dtype):
    like = torch.zeros(3, dtype=dtype)
    made = batch.constant(0.123, like)
    assert (made.item(), made.dtype, made.shape) == (pytest.approx(0.123), dtype, ())
    assert batch.constant(0.123, like) is made


def test_a_constant_does_not_outlive_its_transform():
    values = torch.tensor([1.0, 2.0])
    mask = torch.tensor([True, False])

    def filled(values):
        return pairwise.fill_outside(values, mask, 7.25).sum()

    assert torch.func.grad(filled)(values).tolist() == [1.0, 0.0]
    assert torch.func.vmap(torch.func.grad(filled))(values[None]).tolist() == [[1.0, 0.0]]
    with torch.inference_mode():
        assert pairwise.fill_outside(values, mask, 7.25).tolist() == [1.0, 7.25]
    fresh = batch.constant(7.25, values)
    assert not fresh.is_inference()
    assert torch.func.grad(filled)(values).tolist() == [1.0, 0.0]
    tracked = values.clone().requires_grad_()
    (tracked * fresh).sum().backward()
    assert tracked.grad.tolist() == [7.25, 7.25]


def float_masks(labels, matrix):
    rule = pairwise.PairsOfRows(matrix.device, labels, None, labels, has_references=False)
    return rule.weighted_masks(matrix, as_floats=True)[0]


def test_masks_of_batches_that_are_grouped_alike_are_kept():
    matrix = torch.zeros(4, 4)
    labels = torch.tensor([7, 2**40, 7, -1])
    with torch.device("meta"):  # the default of new tensors
        masks = float_masks(labels, matrix)
    assert masks.tolist() == pairwise.pair_masks(matrix, torch.tensor([0, 1, 0, 2])).float().tolist()
    assert float_masks(torch.tensor([5, 5, 1, 0]), matrix).tolist() != masks.tolist()
    masks = float_masks(torch.tensor([2**40, 7, 2**40, 3]), matrix)
    assert float_masks(torch.tensor([0, 1, 0, 2]), matrix) is masks
    assert float_masks(torch.tensor([0, 1, 0, 2]), matrix.double()).dtype == torch.float64
    masks[0].zero_()  # a plugin's equation writes into them
    assert float_masks(torch.tensor([0, 1, 0, 2]), matrix)[0].sum() == 2


def test_kept_masks_do_not_outlive_their_transform():
    labels = torch.tensor([0, 1, 1, 0, 0])

    def positive_sum(values):
        return (values * float_masks(labels, values)[0]).sum()

    values = torch.ones(5, 5)
    with torch.inference_mode():
        assert positive_sum(values) == 8
    gradient = torch.func.vmap(torch.func.grad(positive_sum))(values[None])
    assert gradient.sum() == 8
    tracked = values.clone().requires_grad_()
    positive_sum(tracked).backward()
    assert torch.equal(tracked.grad, gradient[0])


@pytest.mark.parametrize("floats", [True, False])
def test_masks_of_both_forms_choose_the_same_values(floats, monkeypatch):
    monkeypatch.setattr("pml_ext.pairwise.masks._SMALL", 3 if floats else 4)
    values = torch.tensor([[1.0, -2.0], [3.0, 1e30]])
    mask = torch.tensor([[True, False], [False, True]])
    form = pairwise.indicators(mask, values)
    assert (form.dtype, pairwise.prefers_floats(values)) == (torch.float32 if floats else torch.bool, floats)
    assert pairwise.zero_outside(values, form).tolist() == [[1.0, 0.0], [0.0, values[1, 1].item()]]
    assert torch.equal(pairwise.fill_outside(values, form, -1e38), torch.where(mask, values, -1e38))
    assert torch.equal(
        pairwise.fill_outside(values, form, (2, -3)), torch.stack([torch.where(mask, values, n) for n in (2, -3)])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_shares_are_never_denormal(dtype, monkeypatch):
    monkeypatch.setattr("pml_ext.pairwise.masks._SMALL", 0)
    precision = torch.finfo(dtype)
    exponents = torch.linspace(math.log(precision.tiny) - 20, 0, 500, dtype=dtype)
    shares = pairwise.without_tiny(torch.softmax(exponents, 0))
    weights = pairwise.weights_of_shares(torch.cat([exponents.exp(), -exponents.exp()]), shares)
    products = (shares[:, None] * weights).abs()
    assert products[products > 0].min() >= precision.tiny
    assert shares.sum() == pytest.approx(1)
    assert pairwise.without_tiny(torch.tensor([torch.nan, 1.0], dtype=dtype)).isnan().tolist() == [True, False]
    assert pairwise.weights_of_shares(torch.tensor([torch.nan, 1.0], dtype=dtype), shares).isnan().tolist() == [
        True,
        False,
    ]


MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
VALUES = torch.tensor([[1.0, -2.0, 9.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 3.0, 9.0, 9.0]], dtype=torch.float64)


def test_sums_means_and_extremes_equal_loops():
    assert pairwise.masked_sum(VALUES, MASK).tolist() == [3.0, 0.0, 3.0]
    assert pairwise.masked_mean(VALUES, MASK).tolist() == [1.0, 0.0, 3.0]
    assert pairwise.masked_max(VALUES, MASK).tolist() == [4.0, -math.inf, 3.0]
    assert pairwise.masked_min(VALUES, MASK).tolist() == [-2.0, math.inf, 3.0]


@pytest.mark.parametrize("log_scale", [0.0, math.log(0.25), -math.inf, torch.tensor([1.5, 2.0, -1.0])])
@pytest.mark.parametrize(("slope", "center"), [(1.0, 0.0), (-2.0, 0.5)])
def test_log_sum_exp_equals_a_loop(log_scale, slope, center):
    values = VALUES.clone().requires_grad_()
    scale = torch.as_tensor(log_scale, dtype=torch.float64).expand(3)
    sums = [
        sum(torch.exp(slope * (v - center)) for v, kept in zip(row, kept_row, strict=True) if kept)
        for row, kept_row in zip(values, MASK.tolist(), strict=True)
    ]
    expected = torch.stack([torch.log(1 + scale[i].exp() * total) for i, total in enumerate(sums)])

    def compute(matrix):
        sums = pairwise.log_sum_exp(matrix, MASK, slope=slope, center=center)
        return pairwise.log_one_plus_exp(sums + scale)

    found = compute(values)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert found[1] == 0
    gradients = [torch.autograd.grad(each[::2].sum(), values)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert gradcheck(compute, values, check_forward_ad=True)
    assert gradgradcheck(compute, values, check_fwd_over_rev=True)


@pytest.mark.parametrize("log_factors", [None, math.log(0.25), -math.inf, torch.arange(-4.0, 5).view(3, 3)])
def test_several_sums_are_stacked_as_rows(log_factors):
    masks = torch.stack((MASK, ~MASK, torch.ones_like(MASK)))
    slopes = (-2.0, 1.0, 3.0)
    centers = (0.5, 0.0, -1.0)
    offsets = torch.as_tensor(0.0 if log_factors is None else log_factors, dtype=torch.float64).expand(3, 3)

    def together(matrix):
        return pairwise.log_one_plus_sums(matrix, masks, slopes, centers, log_factors)

    def one_by_one(matrix):
        rows = []
        for mask, slope, center, offset in zip(masks, slopes, centers, offsets, strict=True):
            log_sums = pairwise.log_sum_exp(matrix, mask, slope=slope, center=center)
            rows.append(pairwise.log_one_plus_exp(log_sums + offset))
        return torch.stack(rows)

    values = VALUES.clone().requires_grad_()
    torch.testing.assert_close(together(values), one_by_one(values), rtol=1e-13, atol=0)
    assert together(values)[0, 1] == 0  # no entries
    upstream = torch.arange(1.0, 10, dtype=torch.float64).view(3, 3)
    gradients = [torch.autograd.grad(f(values), values, upstream)[0] for f in (together, one_by_one)]
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-15)
    assert gradcheck(together, values, check_forward_ad=True)
    assert gradgradcheck(together, values, check_fwd_over_rev=True)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_sum_exp_far_out(dtype):
    values = torch.tensor([[1e4, -1e4], [-1e4, -2e4], [1e5, 1e5]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True], [True, True], [False, True]])
    found = pairwise.log_one_plus_exp(pairwise.log_sum_exp(values, mask))
    assert found.tolist() == [1e4, 0.0, 1e5]
    with torch.autograd.detect_anomaly(check_nan=True):
        found.sum().backward()
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=dtype)
    torch.testing.assert_close(values.grad, expected, rtol=0, atol=1e-30)


def test_a_row_without_pairs_has_no_gradient():
    values = VALUES.clone().requires_grad_()
    found = pairwise.log_sum_exp(values, torch.zeros_like(MASK), slope=-2.0, center=1.5)
    assert (found < -1e300).all()
    assert not torch.autograd.grad(found.sum(), values)[0].any()


def test_small_sums_keep_their_digits():
    assert pairwise.log_one_plus_exp(torch.tensor(-30.0)).item() == pytest.approx(math.exp(-30), rel=1e-5, abs=0)


def test_bounded_exp_is_finite_and_increasing():
    x = torch.tensor([-3.0, 0.0, 60.0, 1e5], requires_grad=True)
    y = pairwise.exp_bounded(x)
    torch.testing.assert_close(y[:3], x[:3].exp())
    assert y.isfinite().all()
    assert y[3] > y[2]
    y.sum().backward()
    torch.testing.assert_close(x.grad[:3], x[:3].detach().exp())
    assert x.grad.isfinite().all()
    limit = 0.75 * math.log(torch.finfo(torch.float32).max)
    assert x.grad[3].item() == pytest.approx(math.exp(limit), rel=1e-4)


@pytest.mark.parametrize("size", [12, 400])  # booleans, and a product of matrices
def test_sums_inside_several_masks_are_equal(size):
    draw = torch.Generator().manual_seed(size)
    matrix = torch.randn(size, size, generator=draw, dtype=torch.float64)
    masks = torch.rand(2, size, size, generator=draw) < torch.tensor([0.1, 0.8]).view(2, 1, 1)
    masks[0, 0] = False
    expected = torch.stack([pairwise.masked_sum(matrix, mask) for mask in masks])
    found = pairwise.masked_sums(matrix, pairwise.indicators(masks, matrix))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

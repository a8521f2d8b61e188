"""Whitening in closed form against slow float64 loops, and scikit-learn where the definitions meet."""

import numpy as np
import pytest
import torch
from sklearn.covariance import shrunk_covariance
from sklearn.decomposition import PCA

from pml_ext import TotalWhitening, WithinClassWhitening
from pml_ext.relations import DifferentGroups


def some_features(classes=7, size=6, seed=0, dtype=torch.float64):
    """Features of classes of 1 to 8 items in random order, far from 0, with directions of different variance."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.arange(classes) % 8 + 1
    labels = torch.repeat_interleave(torch.arange(classes), counts)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    scales = torch.logspace(-1, 1, size, dtype=torch.float64)
    centers = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    features = 100 + centers[labels] + torch.randn(len(labels), size, generator=generator, dtype=torch.float64) * scales
    return features.to(dtype), labels


FEATURES, LABELS = some_features()


def slow_whitening(features, labels, shrinkage):
    """Return covariances and center, from the equations, item by item."""
    items = [(x.numpy(), int(c)) for x, c in zip(features, labels, strict=True)]
    classes = {}
    for x, c in items:
        classes.setdefault(c, []).append(x)
    used = {c: xs for c, xs in classes.items() if len(xs) > 1}
    number = sum(len(xs) for xs in used.values())
    center = sum(x for xs in used.values() for x in xs) / number
    size = features.shape[1]
    within, total = np.zeros((size, size)), np.zeros((size, size))
    for xs in used.values():
        mean = sum(xs) / len(xs)
        for x in xs:
            within += np.outer(x - mean, x - mean) / number
            total += np.outer(x - center, x - center) / number
    shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / size * np.eye(size)
    values, vectors = np.linalg.eigh(shrunk)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    _, directions = np.linalg.eigh(root @ total @ root)
    return directions[:, ::-1].T @ root, center


def outputs_without_signs(weight, center, features):
    return ((features.numpy() - center) @ weight.T).__abs__()


@pytest.mark.parametrize("shrinkage", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("size", [None, 3])
def test_within_class_whitening_equals_a_loop(shrinkage, size):
    layer = WithinClassWhitening(shrinkage, size).fit(FEATURES, LABELS)
    weight, center = slow_whitening(FEATURES, LABELS, shrinkage)
    wanted = outputs_without_signs(weight[:size], center, FEATURES)
    np.testing.assert_allclose(layer(FEATURES).detach().abs().numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_total_whitening_without_shrinkage_is_whitened_pca():
    features, _ = some_features(20)
    outputs = TotalWhitening(shrinkage=0, size=3).fit(features)(features).detach().numpy()
    wanted = PCA(3, whiten=True, svd_solver="full").fit_transform(features.numpy())
    wanted *= np.sqrt(len(features) / (len(features) - 1))  # scikit-learn divides by N - 1
    np.testing.assert_allclose(np.abs(outputs), np.abs(wanted), rtol=1e-7, atol=1e-9)


def test_shrinkage_is_that_of_scikit_learn():
    features, _ = some_features(20)
    layer = TotalWhitening(shrinkage=0.3).fit(features)
    inverse = np.linalg.inv(shrunk_covariance(np.cov(features.numpy().T, bias=True), 0.3))
    weight = layer.weight.detach().numpy()
    np.testing.assert_allclose(weight.T @ weight, inverse, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 5, 1000])
def test_batches_give_what_all_at_once_gives(batch):
    whole = WithinClassWhitening().fit(FEATURES, LABELS)
    head = WithinClassWhitening()
    for part, names in zip(FEATURES.split(batch), LABELS.split(batch), strict=True):
        head.partial_fit(part, names)
    torch.testing.assert_close(head.to_linear().weight, whole.weight, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(head.to_linear().bias, whole.bias, rtol=1e-9, atol=1e-9)


def test_large_and_small_classes_are_added_in_parts(monkeypatch):
    features, labels = some_features(30)
    whole = WithinClassWhitening().fit(features, labels)
    monkeypatch.setattr("pml_ext.whitening._ROWS", 3)
    torch.testing.assert_close(WithinClassWhitening().fit(features, labels).weight, whole.weight)


def test_pairs_of_all_classes_give_the_labels_result():
    pairs = [(i, j) for i in range(len(LABELS)) for j in range(i) if LABELS[i] == LABELS[j]]
    by_labels = WithinClassWhitening(size=4).fit(FEATURES, LABELS)
    by_pairs = WithinClassWhitening(size=4).fit(FEATURES, pairs=torch.tensor(pairs + pairs[:5]))
    torch.testing.assert_close(by_pairs.weight, by_labels.weight, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(by_pairs.bias, by_labels.bias, rtol=1e-9, atol=1e-9)


def test_relation_chooses_the_positive_pairs_only():
    groups = torch.arange(len(LABELS)) % 2
    relation = DifferentGroups()
    pairs = [(i, j) for i in range(len(LABELS)) for j in range(i) if LABELS[i] == LABELS[j] and groups[i] != groups[j]]
    wanted = WithinClassWhitening().fit(FEATURES, pairs=pairs)
    found = WithinClassWhitening(relation=relation).fit(FEATURES, torch.stack([LABELS, groups], 1))
    torch.testing.assert_close(found.weight, wanted.weight)


def test_labels_are_texts_series_or_numbers():
    pandas = pytest.importorskip("pandas")

    texts = [f"class {int(label)}" for label in LABELS]
    wanted = WithinClassWhitening().fit(FEATURES, LABELS).weight
    for given in (texts, np.array(texts), pandas.Series(LABELS.tolist(), index=range(7, 7 + len(LABELS)))):
        torch.testing.assert_close(WithinClassWhitening().fit(FEATURES, given).weight, wanted)


def test_the_layer_is_float32_and_deterministic():
    features, labels = some_features(dtype=torch.float32)
    first = WithinClassWhitening().fit(features, labels)
    second = WithinClassWhitening().fit(features, labels)
    assert first.weight.dtype == torch.float32
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    assert (first.weight.gather(1, first.weight.abs().argmax(1, keepdim=True)) > 0).all()
    assert WithinClassWhitening().fit(features.bfloat16(), labels).weight.dtype == torch.float32


def test_constant_feature_needs_shrinkage_above_zero():
    features, labels = some_features()
    features[:, 2] = 5
    assert WithinClassWhitening().fit(features, labels)(features).isfinite().all()
    with pytest.raises(ValueError, match="1 of 6 directions .* do not vary .* shrinkage above 0"):
        WithinClassWhitening(shrinkage=0).fit(features, labels)


def test_auto_takes_the_best_on_held_out_classes():
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(20).repeat_interleave(6)
    signal = torch.randn(20, 4, generator=generator)[labels]
    noise = torch.randn(120, 8, generator=generator)
    features = torch.cat([signal + 0.05 * noise[:, :4], 20 * noise[:, 4:]], dim=1)
    best = WithinClassWhitening("auto").fit(features, labels)
    assert torch.equal(best.weight, WithinClassWhitening(0.3).fit(features, labels).weight)
    isotropic = torch.randn(20, 30, generator=generator)[labels] + 1.5 * torch.randn(120, 30, generator=generator)
    best = WithinClassWhitening("auto").fit(isotropic, labels)
    assert not torch.equal(best.weight, WithinClassWhitening(0.3).fit(isotropic, labels).weight)


def fit(*given, **named):
    return WithinClassWhitening().fit(*given, **named)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fit(torch.ones(4, 3), [0, 0, 1, 1]), "equal; wanted features that vary"),
        (lambda: fit(torch.randn(3, 2), [0, 1, 2]), "no class has two items"),
        (lambda: fit(torch.tensor([[0.0, 1], [torch.nan, 2]]), [0, 0]), "row 1 has NaN"),
        (lambda: fit(torch.randn(3, 2), [0, 1]), "one for each of 3 features"),
        (lambda: fit(torch.randn(3), [0, 1, 1]), r"\[N, F\]"),
        (lambda: fit(torch.randn(3, 2)), "neither of labels and pairs"),
        (lambda: fit(torch.randn(3, 2), [0, 0, 0], pairs=[[0, 1]]), "both of labels and pairs"),
        (lambda: fit(torch.randn(3, 2), pairs=[[0, 3]]), "rows from 0 to 2, got 0 to 3"),
        (lambda: fit(torch.randn(3, 2), pairs=[[1, 1]]), "no pair of two different items"),
        (lambda: WithinClassWhitening(shrinkage=1.5), "of WithinClassWhitening must be .* at most 1 or 'auto'"),
        (lambda: TotalWhitening(size=0), "size of TotalWhitening must be a whole number"),
        (lambda: TotalWhitening(size=7).fit(some_features()[0]), "at most the 6 columns"),
        (lambda: WithinClassWhitening("auto").partial_fit(*some_features()).to_linear(), "call fit, or give a number"),
        (lambda: WithinClassWhitening("auto").fit(torch.randn(8, 3), torch.arange(8) // 4), "4 classes .*, found 2"),
        (
            lambda: WithinClassWhitening().partial_fit(*some_features()).partial_fit(torch.randn(4, 3), [0, 0, 1, 1]),
            "features have 3 columns, those before 6",
        ),
        (lambda: TotalWhitening().fit(np.ones((3, 2))), "must be a tensor"),
    ],
)
def test_wrong_data_and_settings_are_named(call, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_layer_equals_that_of_the_cpu():
    features, labels = some_features(20)
    layer = WithinClassWhitening(size=3).fit(features.cuda(), labels.cuda())
    assert layer.weight.is_cuda
    wanted = WithinClassWhitening(size=3).fit(features, labels)
    torch.testing.assert_close(layer.weight.cpu(), wanted.weight, rtol=1e-8, atol=1e-10)

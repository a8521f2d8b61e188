"""A component against a slow form of its equation, over batches and settings."""

import functools
import re

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext.plugin import PairLoss, masked_mean, per_anchor
from pml_ext.testing import SkipCheck, check_component
from tests.testing.planted import ByHand, Deviance, bug_of, failing, loop

COMPARED = ["check_reference", "check_settings"]


def results(component, checks=("check_reference",), **given):
    found = check_component(component, checks=checks, on_fail=None, **given)
    return found[0] if len(found) == 1 else found


class Needy(ByHand):
    """A setting without a default, one that is a name, and one without effect."""

    def __init__(self, temperature, name: str = "", tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def values(self, s, *masks):
        return super().values(s / self.temperature, *masks)


class Scaled(ByHand):
    """A learned weight, and a setting without effect."""

    def __init__(self, tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def values(self, *matrices):
        return self.scale * super().values(*matrices)


def test_reference_is_equal_under_every_setting():
    compared, varied = results(ByHand, COMPARED, reference=loop)
    assert compared.status == varied.status == "passed"
    assert compared.text == "equal in 40 comparisons"  # 4 tables of settings, on 10 batches, tuples and references each
    assert varied.text == "varied: alpha, margin, square"


@pytest.mark.parametrize(
    ("component", "settings", "without_effect", "text"),
    [
        (Scaled, None, [], r"the setting tile changes neither value nor gradient \(\d+ pairs.* without_effect="),
        (ByHand, {"margin": [0.1]}, ["alpha"], "alpha is said to be without"),
        (
            functools.partial(Needy, temperature=0.5),
            None,
            ["tile"],
            r"name is not varied; .*{'name': \[...\]}",
        ),
    ],
)
def test_what_is_said_of_settings(component, settings, without_effect, text):
    found = results(component, ["check_settings"], reference=loop, settings=settings, without_effect=without_effect)
    assert found.status == "failed"
    assert re.search(text, found.text), found.text


def off_by_a_percent(*batch, **settings):
    return 1.01 * loop(*batch, **settings)


def of_another_gradient(embeddings, *more, **settings):
    value = loop(embeddings, *more, **settings)
    return 2 * value - value.detach()


def fails_without_positives(embeddings, labels):
    return loop(embeddings, labels) + 0 / int((labels[:, None] == labels).sum() - len(labels))


def in_plain_numbers(*batch, **settings):
    return loop(*batch, **settings).item()


def without_indices(embeddings, labels):
    return loop(embeddings, labels)


@pytest.mark.parametrize(
    ("component", "reference", "text"),
    [
        (ByHand(), off_by_a_percent, "with the default settings, overlapping classes: the value differs"),
        (ByHand(), of_another_gradient, "classes: the gradient of the embeddings differs from the reference's: "),
        (bug_of("check_gradients"), loop, "overlapping classes: the gradient of the emb"),
        (bug_of("check_indices_tuple_of_pairs")(), loop, "pairs of a miner: the value differs"),
        (ByHand(margin=0.25), loop, "the value differs"),
        (
            ByHand(),
            lambda x, y: loop(x, y)[None],
            r"the value differs from the reference's: shape \(\) instead of \(1,\)",
        ),
        (ByHand(), lambda x, y: 1.01 * in_plain_numbers(x, y), "the value differs"),
        (ByHand(), fails_without_positives, "ZeroDivisionError"),
        (ByHand, lambda x, y, margin=0.5: loop(x, y, margin=margin), "takes no setting 'alpha'"),
    ],
)
def test_what_is_said_of_a_difference(component, reference, text):
    found = results(component, reference=reference)
    assert found.status == "failed"
    assert re.search(text, found.text), found.text


@pytest.mark.parametrize(
    ("component", "reference", "status"),
    [
        (ByHand(), in_plain_numbers, "passed"),
        (bug_of("check_gradients")(), in_plain_numbers, "passed"),  # check_gradients finds it
        (bug_of("check_indices_tuple_of_pairs")(), without_indices, "passed"),
        (ByHand(margin=0.25), lambda x, y: loop(x, y, margin=0.25), "passed"),
        (LpRegularizer(), lambda x: x.norm(dim=1).mean(), "passed"),
        (MeanReducer, without_indices, "skipped"),
    ],
)
def test_a_reference_compares_what_it_gives(component, reference, status):
    assert results(component, reference=reference).status == status


def test_reference_gets_the_instance_that_it_names():
    """Its parameters are moved from where they start, and their gradients are compared."""
    seen = []

    def scaled(embeddings, labels, component):
        seen.append(component.scale.item())
        return component.scale * loop(embeddings, labels)

    assert results(Scaled(), reference=scaled).status == "passed"
    assert set(seen) != {1.5}
    without = results(Scaled(), reference=lambda x, y, component: component.scale.detach() * loop(x, y))
    assert "the gradient of scale differs" in without.text


def test_a_reference_may_leave_out_what_it_cannot():
    def plain_alone(embeddings, labels, square=False, **settings):
        if square:
            raise SkipCheck("squares are not written out")
        return loop(embeddings, labels, **settings)

    found = results(ByHand, reference=plain_alone)
    assert found.text.endswith("; left out by the reference: square=True: squares are not written out")
    found = results(ByHand(square=True), reference=lambda x, y: plain_alone(x, y, square=True))
    assert (found.status, "compared nothing" in found.text) == ("failed", True)


def hardest(embeddings, labels, ref_emb=None, ref_labels=None):
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    others, names = (points, labels) if ref_emb is None else (ref_emb / ref_emb.norm(dim=1)[:, None], ref_labels)
    triplets = set()
    for i, point in enumerate(points):
        near = [(float(point @ others[j]), j) for j in range(len(names)) if names[j] == labels[i]]
        far = [(float(point @ others[k]), k) for k in range(len(names)) if names[k] != labels[i]]
        near = [(similarity, j) for similarity, j in near if ref_emb is not None or j != i]
        if near and far:
            triplets.add((i, min(near)[1], max(far)[1]))
    return triplets


def test_miner_is_compared_with_a_loops_set():
    assert results(BatchHardMiner, reference=hardest).text == "equal in 6 comparisons"
    found = results(BatchHardMiner, reference=lambda *batch, **more: {(a, p, p) for a, p, n in hardest(*batch, **more)})
    assert "it mines different pairs from the reference" in found.text
    assert "(anchor, positive, negative)" in found.text
    pairs = results(BatchHardMiner, reference=lambda *batch: (set(), {(0, 1)}))
    assert pairs.text == "it gives triplets, the reference pairs"
    found = results(BatchHardMiner, reference=lambda *batch: 5)
    assert "a miner's reference returns the set of triplets" in found.text


def test_distance_is_compared_with_its_own_settings():
    class Scaled(LpDistance):
        def __init__(self, factor: float = 2.0, **kwargs):
            super().__init__(**kwargs)
            self.factor = factor

        def compute_mat(self, x, y):
            return self.factor * super().compute_mat(x, y)

    def slow(embeddings, ref_emb=None, factor=2.0):
        x = torch.nn.functional.normalize(embeddings)
        y = x if ref_emb is None else torch.nn.functional.normalize(ref_emb)
        return factor * (x[:, None] - y).square().sum(2).clamp(min=1e-24).sqrt()

    assert re.fullmatch(r"equal in \d+ comparisons", results(Scaled, reference=slow).text)
    assert "the value differs" in results(Scaled, reference=lambda x, factor=2.0: 2 * slow(x, factor=factor)).text


@pytest.mark.parametrize(
    ("component", "given", "text"),
    [
        (ByHand, {"settings": {"margn": [1.0]}}, "no setting of ByHand 'margn'; nearest: margin"),
        (ByHand(), {"settings": {"margin": [1.0]}}, "ByHand is built already; give the class ByHand"),
        (ByHand, {"settings": {"margin": 1.0}}, r"a list of values, such as {'margin': \[1.0\]}; got 'margin': 1.0"),
        (ByHand, {"checks": ["check_refrence"]}, "'check_refrence' is no check of a loss"),
        (Needy, {}, "Needy needs temperature"),
    ],
)
def test_settings_that_do_not_fit(component, given, text):
    with pytest.raises(ValueError, match=text):  # ConfigError is one
        check_component(component, **given)


def test_first_settings_are_used_by_other_checks():
    given = {"settings": {"temperature": [0.5, 0.1], "name": ["a", "b"]}, "without_effect": ["tile", "name"]}
    checks = ["check_call_forms", "check_settings"]
    assert {result.status for result in check_component(Needy, checks=checks, **given)} == {"passed"}


class Ranked(PairLoss):
    """The mean rank of an anchor's positives among its negatives, which weighs the positive."""

    above = staticmethod(torch.gt)

    def equation(self, pairs):
        ranks = self.above(pairs.matrix[:, None, :], pairs.matrix[:, :, None]) & pairs.negatives[:, None]
        weights = 1 + ranks.sum(2).to(pairs.matrix.dtype)
        return per_anchor(masked_mean(-weights * pairs.matrix, pairs.positives))


class RankedWithTies(Ranked):
    above = staticmethod(torch.ge)


def mean_rank(embeddings, labels):
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    matrix = points @ points.T
    total = 0 * embeddings.sum()
    for i in range(len(labels)):
        positives = [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]
        negatives = [k for k in range(len(labels)) if labels[k] != labels[i]]
        for j in positives:
            rank = 1 + sum(bool(matrix[i, k] > matrix[i, j]) for k in negatives)
            total = total - rank * matrix[i, j] / len(positives)
    return total / len(labels)


def test_ties_of_positives_and_negatives_are_compared():
    assert failing(Ranked, checks=["check_reference"], reference=mean_rank) == {}
    found = failing(RankedWithTies, checks=["check_reference"], reference=mean_rank)
    assert "a positive and a negative that are equal: the value differs" in found["check_reference"]


class GivesAlpha(Deviance):
    def __init__(self, **kwargs):
        super().__init__(alpha=2.0, **kwargs)


def test_setting_passed_to_the_base_is_not_varied():
    assert failing(GivesAlpha, checks=["check_settings", "check_reference"], reference=loop) == {}

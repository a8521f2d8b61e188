"""Losses on listed pairs and triplets: which fit, and that a loss sees the list and nothing else."""

import re
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.regularizers import LpRegularizer

import pml_ext
from pml_ext import registry
from pml_ext.losses import takes_conflicts, why_unusable
from pml_ext.pairwise import ListedTuples

PAGE = (Path(__file__).parents[2] / "docs" / "pairs.md").read_text("utf-8")
OURS = {"pml", "angular", "cbml", "density", "pddm", "triplets", "pytorch-metric-learning"}


def losses_of_the_page(kind):
    (cells,) = re.findall(rf"^\| {kind} \| (.*`.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`([\w/-]+)`", cells))


def built():
    """Every registered loss that needs no setting but these."""
    context = {"embedding_size": 16, "num_classes": 2, "class_labels": [0, 1]}
    found = {}
    for component in registry.components("loss"):
        if component.plugin not in OURS:
            continue
        try:
            found[component.name] = registry.build(component.name, "loss", context)
        except Exception:  # a setting without a default, of wrappers and others
            continue
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_has_all_losses_that_fit():
    found = {kind: set() for kind in ("pairs", "triplets")}
    for name, loss in built().items():
        for kind, names in found.items():
            if not why_unusable(loss, kind):
                names.add(name)
    assert found["pairs"] == losses_of_the_page("pairs")
    assert found["triplets"] == losses_of_the_page("triplets") | found["pairs"]


@pytest.mark.parametrize(
    ("loss", "kind", "reason"),
    [
        (losses.VICRegLoss(), "pairs", "it takes no indices_tuple"),
        (losses.ProxyAnchorLoss(2, 16), "triplets", "labels are required"),
        (losses.TripletMarginLoss(), "pairs", "a pair that is the same adds nothing to it by itself"),
        (losses.LiftedStructureLoss(), "pairs", "a pair that is not the same adds nothing to it by itself"),
        (losses.DynamicSoftMarginLoss(), "triplets", "RuntimeError"),
        (losses.ContrastiveLoss(neg_margin=0), "triplets", "with these settings, some triplets do not add to it"),
    ],
)
def test_why_a_loss_does_not_fit(loss, kind, reason):
    assert reason in why_unusable(loss, kind)


def test_losses_of_matrices_take_no_conflicts():
    assert takes_conflicts(losses.TripletMarginLoss())
    assert takes_conflicts(pml_ext.CBMLLoss())
    assert not takes_conflicts(losses.MultiSimilarityLoss())


def test_looking_at_a_loss_changes_nothing():
    loss = losses.MarginLoss(learn_beta=True, collect_stats=True).eval()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    assert why_unusable(loss, "triplets") == ""
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    assert loss.beta.grad is None
    assert not loss.training


def test_an_embedding_regularizer_hides_no_misfit():
    with_regularizer = losses.TripletMarginLoss(embedding_regularizer=LpRegularizer())
    assert "adds nothing to it by itself" in why_unusable(with_regularizer, "pairs")
    assert why_unusable(losses.ContrastiveLoss(embedding_regularizer=LpRegularizer()), "pairs") == ""


def contrastive_by_loop(embeddings, pairs):
    """PML's contrastive loss: means of distances of pairs that are the same, and of hinges of the others."""
    known = []
    others = []
    for (a, b), same in zip(pairs.rows.tolist(), pairs.same.tolist(), strict=True):
        distance = float((embeddings[a] - embeddings[b]).norm())
        if same:
            known.append(distance)
        else:
            others.append(max(0.0, 1 - distance))
    above = [value for value in others if value > 0]
    return sum(known) / len(known) + (sum(above) / len(above) if above else 0)


def test_the_loss_of_listed_pairs_equals_a_loop():
    rng = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(12, 3, generator=rng, dtype=torch.float64))
    rows = torch.stack([torch.randperm(12, generator=rng)[:2] for _ in range(30)])
    pairs = ListedTuples(rows, torch.arange(30) % 3 == 0)
    numbers = [4, 7, 9, 12, 17, 20, 21]
    batch = pairs.batch(numbers)
    value = losses.ContrastiveLoss()(points[batch.items], indices_tuple=batch.indices_tuple)
    assert float(value) == pytest.approx(contrastive_by_loop(points, pairs.some(numbers)), abs=1e-12)


def test_a_probe_restores_the_generators_it_seeds(monkeypatch):
    """torch.manual_seed seeds the GPUs too, whose generators a run has seeded before."""

    def everywhere(seed):
        raise AssertionError("all devices were seeded")

    monkeypatch.setattr(torch, "manual_seed", everywhere)
    before = torch.get_rng_state()
    assert why_unusable(losses.TripletMarginLoss(), "triplets") == ""
    assert takes_conflicts(losses.TripletMarginLoss())
    assert torch.equal(torch.get_rng_state(), before)

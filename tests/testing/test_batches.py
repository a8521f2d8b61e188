"""The batches that components are checked with."""

import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext.testing import batches
from pml_ext.testing.subject import subject_of

SUBJECT = subject_of(losses.ProxyAnchorLoss(num_classes=3, embedding_size=5), embedding_size=5)


def test_a_batch_has_the_sizes_of_its_subject():
    batch = batches.batch_of(SUBJECT)
    assert batch.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # of 6 classes wanted
    assert (batch.embeddings.shape, batch.embeddings.dtype) == ((12, 5), torch.float64)
    assert batch.embeddings.is_leaf
    assert batch.embeddings.requires_grad
    given = batches.batch_of(SUBJECT, torch.tensor([2, 0]), torch.float16)
    assert (given.labels.tolist(), given.embeddings.dtype) == ([2, 0], torch.float16)


def test_a_seed_draws_the_same_batch_and_no_global_number():
    state = torch.get_rng_state()
    one, again, other = (batches.batch_of(SUBJECT, seed=seed).embeddings for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert sorted(batches.shuffle(9, 3).tolist()) == list(range(9))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("settings", batches.CLOSE, ids=str)
def test_settings_scale_and_shift_the_points(settings):
    plain = batches.batch_of(SUBJECT, spread=settings.get("spread", 1.2)).embeddings
    found = batches.batch_of(SUBJECT, **settings).embeddings
    shift = found / settings.get("scale", 1) - plain
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert shift[0].norm().item() == pytest.approx(settings.get("common", 0), rel=1e-6, abs=1e-9)


def test_another_order_is_a_new_leaf():
    batch = batches.batch_of(SUBJECT)
    order = torch.arange(12).flip(0)
    other = batch.ordered(order)
    assert torch.equal(other.embeddings, batch.embeddings[order])
    assert torch.equal(other.labels, batch.labels[order])
    other.embeddings.sum().backward()
    assert batch.embeddings.grad is None


def test_a_sample_keeps_pairs_together():
    pairs = torch.arange(10), torch.arange(10) + 100
    generator = torch.Generator().manual_seed(0)
    for share, count in ((0.5, 5), (0.01, 1), (1.0, 10)):
        a, b = batches.sample_pairs(pairs, share, generator)
        assert len(a) == count
        assert (b - a).tolist() == [100] * count
        assert a.tolist() == sorted(set(a.tolist()))

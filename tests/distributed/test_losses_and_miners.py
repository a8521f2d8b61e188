"""Two gloo processes against one on the joined batch, in float64; see cases.py."""

import re
import warnings

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import CBMLLoss, CrossBatchMemory, DistributedLoss, DistributedMiner, registry

from . import cases as CASES

pytestmark = pytest.mark.timeout(0)  # two processes on a busy machine take as long as they take
NAMES = sorted(CASES.names())


def difference(found, expected):
    """The greatest absolute difference of the value, the network's gradients and the loss's own."""
    worst = {"value": (found["value"] - expected["value"]).abs().item()}
    for kind in ("network", "own"):
        pairs = zip(found[kind], expected[kind], strict=True)
        worst[kind] = max(((one - other).abs().max().item() for one, other in pairs), default=0.0)
    return worst


@pytest.mark.parametrize("parts", [CASES.EVEN, CASES.UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_are_one_on_the_joined_batch(two, name, parts):
    expected = CASES.in_one_process(name)
    found_some = 0
    for rank in range(2):
        for (case, split, around), found in _steps(two[rank]):
            if case == name and split == parts:
                found_some += 1
                assert max(difference(found, expected).values()) < 1e-10, (around, difference(found, expected))
    assert found_some in (2, 6)
    assert found_some == 6 or not expected["own"]
    assert any(grad.abs().max() > 1e-4 for grad in expected["network"])


def test_memory_in_pmls_wrapper_sees_the_joined_batch(two):
    """Its value is that times the processes; DistributedDataParallel averages gradients."""
    expected = CASES.step(CASES.network(), CASES.two_batches(), None, None)
    for rank in range(2):
        found = two[rank]["results"]["PML's wrapper"]
        assert max(difference({**found, "value": found["value"] / 2}, expected).values()) < 1e-10


def _steps(saved):
    return [(key, value) for key, value in saved["results"].items() if isinstance(key, tuple) and key[0] in NAMES]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_cached_gradients_of_two_encoders(two, dropout):
    """As uncached in two processes; without dropout, which each process draws for itself, as one process."""
    for rank in range(2):
        found = two[rank]["results"]["two encoders", dropout, True]
        expected = two[rank]["results"]["two encoders", dropout, False]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        if not dropout:
            torch.testing.assert_close(found, CASES.of_two_encoders(dropout, False), rtol=0, atol=1e-12)


def test_three_views_equal_one_process(two):
    expected = CASES.of_views()
    for rank in range(2):
        torch.testing.assert_close(two[rank]["results"]["views", rank], expected, rtol=0, atol=1e-12)
        assert "ref_emb of ContrastiveLoss must be one tensor; several views" in two[rank]["errors"]["list"]


def test_every_registered_loss_is_compared():
    ours = {c.name for c in registry.components("loss") if not c.name.startswith("pml/")}
    assert ours - {"regularized", "multiple", "cross-batch-memory"} <= set(NAMES)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("size", "embeddings must be alike .* rank 0 has torch.float32 of 4 columns, rank 1 torch.float32 of 5"),
        ("dtype", "rank 0 has torch.float32 of 4 columns, rank 1 torch.float64"),
        ("labels", "labels must be alike .* rank 0 has none, rank 1 torch.int64"),
        ("tuple", r"rows of the joined batch .* mine with DistributedMiner\(miner\)"),
    ],
)
def test_processes_that_differ_are_told(two, key, text):
    for rank in range(2):
        assert re.search(text, two[rank]["errors"][key]), two[rank]["errors"][key]


def test_a_process_without_images_has_the_others_value(two):
    first, second = (saved["results"]["empty"] for saved in two)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.manual_seed(0)
    torch.testing.assert_close(first["proxies"], losses.ProxyAnchorLoss(2, 4).proxies.detach(), rtol=0, atol=0)


def test_half_precision_and_references_are_joined(two):
    x = torch.arange(32.0).reshape(8, 4).sin().bfloat16()
    labels = torch.arange(8) % 2
    references = torch.cat([x[:4].flip(0), x[4:].flip(0)])
    ref_labels = torch.cat([labels[:4].flip(0)] * 2)
    expected = CBMLLoss()(x, torch.cat([labels[:4]] * 2), None, references, ref_labels)
    for saved in two:
        torch.testing.assert_close(saved["results"]["half"]["value"], expected, rtol=0, atol=0)


def test_a_miners_triplets_are_counted_in_every_process(two):
    wanted = len(miners.TripletMarginMiner()(*next(CASES.batches()))[0])
    assert wanted > 0
    assert [saved["results"]["counted"] for saved in two] == [wanted] * 2


def test_memory_inside_ddp_keeps_its_own_batches(two):
    for rank, saved in enumerate(two):
        own = torch.cat([labels[8 * rank : 8 * rank + 8] for _, labels in CASES.batches()])
        assert torch.equal(saved["results"]["memory"]["labels"], own)
        assert saved["results"]["memory"]["filled"] == 24


def test_one_process_calls_the_loss_without_warnings():
    x = torch.randn(8, 4, requires_grad=True)
    labels = torch.arange(8) % 4
    loss = losses.TripletMarginLoss()
    miner = miners.BatchHardMiner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = DistributedLoss(loss)
        found = DistributedMiner(miner)(x, labels)
        assert torch.equal(wrapped(x, labels), loss(x, labels))
        assert torch.equal(wrapped(x, labels, found), loss(x, labels, miner(x, labels)))
        assert torch.equal(wrapped(x, labels, None, x * 2, labels), loss(x, labels, None, x * 2, labels))
    assert wrapped.capabilities == registry.capabilities(loss)
    assert DistributedMiner(miner).capabilities == registry.capabilities(miner)


def test_memory_outside_a_distributed_loss_is_refused():
    with pytest.raises(TypeError, match=r"DistributedLoss\(CrossBatchMemory\(loss"):
        CrossBatchMemory(DistributedLoss(losses.ContrastiveLoss()), 4, 16)

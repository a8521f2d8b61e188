"""Two gloo processes against one: losses, miners, collectives and batch norm; see cases.py."""

import re
import warnings

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import CBMLLoss, CrossBatchMemory, DistributedLoss, DistributedMiner, registry
from pml_ext.distributed import process_group, processes
from pml_ext.distributed.gather import gather_rows
from pml_ext.errors import ConfigError
from pml_ext_train.training.batch_norm import JoinedBatchNorm, synchronize_batch_norm

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
        torch.testing.assert_close(found, two[rank]["results"]["two encoders", dropout, False], rtol=0, atol=1e-12)
        if not dropout:
            torch.testing.assert_close(found, CASES.of_two_encoders(dropout, False), rtol=0, atol=1e-12)


def test_three_views_equal_one_process(two):
    expected = CASES.of_views()
    for rank in range(2):
        torch.testing.assert_close(two[rank]["results"]["views", rank], expected, rtol=0, atol=1e-12)
        assert "ref_emb of ContrastiveLoss must be one tensor; several views" in two[rank]["errors"]["list"]


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
    expected = CBMLLoss()(x, torch.cat([labels[:4]] * 2), None, references, torch.cat([labels[:4].flip(0)] * 2))
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


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_the_group_of_a_device(monkeypatch, device, backend):
    asked = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    with process_group(device):
        assert asked == [backend]
    wanted = "no way for several processes to work together on abacus; wanted --device"
    with pytest.raises(ConfigError, match=wanted), process_group("abacus"):
        pass


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with processes.process_group("abacus"):
        assert not torch.distributed.is_initialized()
        assert (processes.num_processes(), processes.rank()) == (1, 0)
        assert processes.from_rank_0("x") == "x"
        assert processes.from_ranks("x") == processes.gather_objects("x") == ["x"]
        assert processes.max_over_ranks(-3) == -3


def test_objects_are_exchanged_between_two_processes(collectives):
    for mine, saved in enumerate(collectives):
        assert saved["processes"] == {
            "number": 2,
            "rank": mine,
            "from rank 0": {"rank": 0},
            "from ranks": [] if mine else ["of 0", "of 1"],
            "gathered": [0, 10],
            "greatest": 5,
            "device": "cpu",  # gloo sends what is there
        }


def test_processes_wait_for_each_other_and_rank_0(collectives):
    first, second = (saved["order"] for saved in collectives)
    assert first["went on"] >= second["came"]
    assert second["entered"] >= first["left"]


def test_tiles_are_divided_into_equal_parts(collectives):
    parts = zip(*(saved["gather"]["part"] for saved in collectives), strict=True)
    for count, slices in zip((1, 2, 5), parts, strict=True):
        tiles = list(range(count))
        assert [tile for each in slices for tile in tiles[each]] == tiles
        lengths = [len(tiles[each]) for each in slices]
        assert max(lengths) - min(lengths) <= 1


def test_tiles_are_shared_if_gradients_agree(collectives):
    for saved in collectives:
        assert saved["gather"]["shared"]
        assert not saved["gather"]["unlike"]


def test_one_row_of_a_column_is_sent(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        (part,) = gather_rows(torch.tensor([[3, 4]])[:, 0], [1])
    finally:
        torch.distributed.destroy_process_group()
    assert part.tolist() == [3]


def test_joined_batch_norm_is_torchs_in_one_process():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten())
    twin = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten())
    twin.load_state_dict(plain.state_dict())
    parameters = dict(twin.named_parameters())
    twin = synchronize_batch_norm(twin, torch.device("cpu"))
    assert isinstance(twin[1], JoinedBatchNorm)
    assert all(parameters[name] is parameter for name, parameter in twin.named_parameters())
    x = torch.randn(4, 1, 5, 5)
    assert torch.equal(plain(x), twin(x))
    assert twin.state_dict().keys() == plain.state_dict().keys()


def test_activations_inside_of_batch_norms_are_kept():
    layers = pytest.importorskip("timm.layers")
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5)
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), layers.BatchNormAct2d(3))
    expected = plain(x)
    assert (expected >= 0).all()
    plain[1].reset_running_stats()
    joined = synchronize_batch_norm(plain, torch.device("cpu"))
    assert isinstance(joined[1], JoinedBatchNorm)
    assert torch.equal(joined(x), expected)
    on_gpus = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), layers.BatchNormAct2d(3))
    on_gpus = synchronize_batch_norm(on_gpus, torch.device("cuda"))
    assert isinstance(on_gpus[1], torch.nn.SyncBatchNorm)
    assert isinstance(on_gpus[1].act, torch.nn.ReLU)


def test_a_batch_norm_of_another_class_warns():
    class OwnBatchNorm(torch.nn.BatchNorm2d):
        pass

    with pytest.warns(UserWarning, match="OwnBatchNorm has the statistics of the batches of its own process"):
        assert isinstance(synchronize_batch_norm(OwnBatchNorm(3), torch.device("cpu")), OwnBatchNorm)


@pytest.mark.parametrize("name", CASES.SETTINGS)
def test_two_processes_share_the_joined_batchs_statistics(collectives, name):
    settings = CASES.SETTINGS[name]
    layer = torch.nn.BatchNorm1d(3, **settings).double()
    layer.load_state_dict(CASES.batch_norm(**settings).state_dict())
    expected = CASES.normalized(layer, CASES.IMAGES)
    found = [saved["batch norm"][name] for saved in collectives]
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([each[key] for each in found]), expected[key], rtol=1e-10, atol=1e-12)
    for each in found:
        torch.testing.assert_close(each["buffers"], expected["buffers"], rtol=1e-12, atol=0)
    for number, gradient in enumerate(expected["own"]):  # DistributedDataParallel averages them
        torch.testing.assert_close(sum(each["own"][number] for each in found), gradient, rtol=1e-10, atol=1e-12)


def test_half_precision_is_normalized_with_statistics_in_full(collectives):
    layer = torch.nn.BatchNorm1d(3)
    layer.load_state_dict(CASES.batch_norm().float().state_dict())
    expected = CASES.normalized(layer, CASES.IMAGES.bfloat16())
    found = [saved["batch norm"]["half"] for saved in collectives]
    assert expected["y"].dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat([each["y"] for each in found]), expected["y"], rtol=0.01, atol=0.01)
    for each in found:
        torch.testing.assert_close(each["buffers"], expected["buffers"], rtol=1e-5, atol=1e-6)


def test_batch_norm_needs_an_input_with_channels():
    with pytest.raises(ValueError, match="expected an input of two dimensions or more; got 1"):
        JoinedBatchNorm(3)(torch.zeros(3))

"""Batch norm over two processes, against torch's over the joined batch."""

import pytest
import torch

from pml_ext_train.training.batch_norm import JoinedBatchNorm, synchronize_batch_norm

from . import primitives

pytestmark = pytest.mark.timeout(0)  # two processes on a busy machine take as long as they take


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


@pytest.mark.parametrize("name", primitives.SETTINGS)
def test_two_processes_share_the_joined_batchs_statistics(collectives, name):
    settings = primitives.SETTINGS[name]
    layer = torch.nn.BatchNorm1d(3, **settings).double()
    layer.load_state_dict(primitives.batch_norm(**settings).state_dict())
    expected = primitives.normalized(layer, primitives.IMAGES)
    found = [saved["batch norm"][name] for saved in collectives]
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([each[key] for each in found]), expected[key], rtol=1e-10, atol=1e-12)
    for each in found:
        torch.testing.assert_close(each["buffers"], expected["buffers"], rtol=1e-12, atol=0)
    for number, gradient in enumerate(expected["own"]):  # DistributedDataParallel averages them
        torch.testing.assert_close(sum(each["own"][number] for each in found), gradient, rtol=1e-10, atol=1e-12)


def test_half_precision_is_normalized_with_statistics_in_full(collectives):
    layer = torch.nn.BatchNorm1d(3)
    layer.load_state_dict(primitives.batch_norm().float().state_dict())
    expected = primitives.normalized(layer, primitives.IMAGES.bfloat16())
    found = [saved["batch norm"]["half"] for saved in collectives]
    assert expected["y"].dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat([each["y"] for each in found]), expected["y"], rtol=0.01, atol=0.01)
    for each in found:
        torch.testing.assert_close(each["buffers"], expected["buffers"], rtol=1e-5, atol=1e-6)


def test_batch_norm_needs_an_input_with_channels():
    with pytest.raises(ValueError, match="expected an input of two dimensions or more; got 1"):
        JoinedBatchNorm(3)(torch.zeros(3))

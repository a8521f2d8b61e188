"""BN-Inception: shapes and weights."""

import torch
from torch import nn

from pml_ext import registry
from pml_ext_train.networks import load_weights, pretrained_images, trunks as models
from pml_ext_train.networks.bn_inception import BNInception


def test_bn_inception_has_the_published_shapes():
    network = BNInception()
    assert sum(each.numel() for each in network.parameters()) == 11_295_240
    with torch.device("meta"):
        network = BNInception().eval()
        assert [network(torch.zeros(2, 3, size, size)).shape for size in (224, 227)] == [(2, 1000)] * 2
    for channels in (1, 3):
        assert models.output_size(registry.factory("trunk", "bn-inception")(channels, 64), channels, 64) == 1024


def test_bn_inception_loads_the_published_weights(tmp_path, monkeypatch):
    """Names as in Cadene's file; old files lack the counters of batch norms."""
    state = BNInception().state_dict()
    known = {
        "conv1_7x7_s2.weight": (64, 3, 7, 7),
        "conv2_3x3_bn.running_var": (192,),
        "inception_3a_double_3x3_2.weight": (96, 96, 3, 3),
        "inception_3c_3x3.bias": (160,),
        "inception_4e_double_3x3_2_bn.weight": (256,),
        "inception_5b_pool_proj.weight": (128, 1024, 1, 1),
        "last_linear.bias": (1000,),
    }
    assert {name: tuple(state[name].shape) for name in known} == known
    assert len({name.rpartition(".")[0] for name in state}) == 2 * 69 + 1  # convolutions with their batch norms
    old = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(old, tmp_path / "checkpoints" / "mine.pth")
    trunk, mean = (models.bn_inception(3, 64, pooling=pooling).eval() for pooling in ("max", "mean"))
    for each in (trunk, mean):
        load_weights(each, "mine.pth")
    images = torch.randn(2, 3, 64, 64)
    reference = BNInception(pooling="max").eval()
    reference.load_state_dict(state)
    reference.last_linear = nn.Identity()
    assert torch.equal(trunk(images), reference(images))
    assert not torch.equal(trunk(images), mean(images))
    wanted = pretrained_images("bn-inception", {"weights": "mine.pth"})
    assert [round(255 * each) for each in wanted.mean] == [128, 117, 104]  # of red, green and blue
    assert wanted.std == (1 / 255,) * 3

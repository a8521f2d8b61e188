"""``pml-ext bench --scale``: doubling batches in processes of their own, and the plot."""

import pytest
import torch

from pml_ext import scale
from pml_ext.benchmark import Shape
from pml_ext.errors import ConfigError
from pml_ext.scale import TILED_FLOOR, Point


def test_batches_double_and_what_fails_is_not_tried_again(monkeypatch):
    asked = []

    def measured(settings, seconds):
        batch = Shape.parse(settings["shape"]).batch
        asked.append((settings["what"], batch))
        failed = "no memory" if settings["what"].startswith("PML") and batch >= 128 else ""
        return Point(settings["what"], batch, None if failed else batch / 100, None if failed else batch, failed)

    monkeypatch.setattr(scale, "_measured_alone", measured)
    points = scale.scale(["tiled-contrastive"], Shape(64, 8, 4), 256, device="cpu")
    peer = "PML contrastive"
    assert asked == [
        (what, batch)
        for batch in (64, 128, 256)
        for what in (TILED_FLOOR, "tiled-contrastive", peer)
        if (what, batch) != (peer, 256)
    ]
    figure = scale.plot(points)
    lines = {line.get_label(): line.get_xdata().tolist() for line in figure.axes[0].get_lines()}
    assert lines == {TILED_FLOOR: [64, 128, 256], "tiled-contrastive": [64, 128, 256], peer: [64]}
    with pytest.raises(ConfigError, match="the largest batch must be at least the first, 64, not 32"):
        scale.scale([], Shape(64, 8, 4), 32, device="cpu")


def test_a_measurement_in_a_process_of_its_own():
    """One that works, and one that has too little memory."""
    settings = {
        "loss": "cbml",
        "what": "cbml",
        "shape": "64x8x4",
        "repeats": 1,
        "device": "cpu",
        "threads": 1,
        "memory": 64.0,
    }
    point = scale._measured_alone(settings, 240.0)
    assert not point.failed, point.failed
    assert point.seconds > 0
    failed = scale._measured_alone(settings | {"loss": TILED_FLOOR, "what": "no such peer"}, 240.0)
    assert failed.seconds is None
    assert failed.failed


def test_the_tiled_floor_is_its_formula():
    x = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    unit = torch.nn.functional.normalize(x)
    torch.testing.assert_close(scale.tiled_floor(x, torch.arange(12)), (unit @ unit.T).exp().mean())

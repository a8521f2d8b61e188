"""Measurements of bench, and the output of its command."""

import json
import re

import pytest
import torch

from pml_ext import CBMLLoss, ConfigError, registry
from pml_ext_train.cli import benchmark
from pml_ext_train.cli.benchmark import Shape, bench

SMALL = [Shape(32, 8, 4)]


def test_losses_regularizers_and_the_floor_have_rows():
    rows = bench(
        ["cbml", "pml/multi-similarity", CBMLLoss(), CBMLLoss(mining=False), "density"],
        SMALL,
        repeats=3,
        device="cpu",
        threads=2,
    )
    assert torch.get_num_threads() == 1  # as before
    assert [row.loss for row in rows] == ["floor", "cbml", "pml/multi-similarity", "CBMLLoss", "CBMLLoss 2", "density"]
    assert rows[0].to_floor == 1
    for row in rows:
        assert row.rounds == 3
        assert row.milliseconds > 0
        assert row.to_floor == pytest.approx(row.milliseconds / rows[0].milliseconds)


def test_the_floors_are_their_formula():
    x = torch.randn(6, 3, dtype=torch.float64)
    unit = x / x.norm(dim=1, keepdim=True)
    expected = sum(torch.exp(unit[i] @ unit[j]) for i in range(6) for j in range(6)) / 36
    torch.testing.assert_close(benchmark.floor(x, torch.arange(6)), expected)
    torch.testing.assert_close(benchmark.tiled_floor(x.requires_grad_(), torch.arange(6)), expected)


def test_peak_memory_counts_tensors_alive_at_one_time():
    def keeps_two(embeddings, labels):
        first = embeddings * 2
        second = first * 3
        return (first * second).sum()

    def drops_each(embeddings, labels):
        with torch.no_grad():
            for _ in range(10):
                embeddings * 2
        return embeddings.sum()

    x = torch.randn(1000, 10, requires_grad=True)
    kept = benchmark.peak_bytes(keeps_two, x, torch.arange(1000))
    dropped = benchmark.peak_bytes(drops_each, x, torch.arange(1000))
    assert 3 * 40_000 <= kept <= 8 * 40_000
    assert 40_000 <= dropped <= 3 * 40_000


def test_traffic_counts_reads_and_writes_of_operators():
    def passes(embeddings, labels):
        doubled = embeddings * 2  # one matrix read, one written
        doubled.view(-1).add_(1)  # likewise; a view does not count
        kept = torch.gt(doubled, 0)  # a boolean is a quarter
        return torch.where(kept, doubled, torch.empty_like(doubled).zero_()).sum()

    x = torch.randn(32, 32, requires_grad=True)
    # times, plus, >, zero, where, sum; empty_like neither reads nor writes
    forward = [2, 2, 1.25, 1, 0.25 + 3, 1]
    backward = [0.25 + 2, 2]  # where, times
    found = benchmark.account_of(passes, x, torch.arange(32)).traffic / (4 * 32 * 32)
    assert sum(forward + backward) <= found <= sum(forward + backward) + 7  # autograd's own copies


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("floor", 11.5),
        ("cbml", 55.1),
        ("angular", 27.5),
        ("n-pair", 18.5),
        ("n-pair-angular", 34),
        ("batch-all-triplets", 42),
        ("tiled-multi-similarity", 27),
    ],
)
def test_traffic_with_boolean_masks_is_bounded(name, most, monkeypatch):
    """1,024 embeddings of size 8, so that nothing counts but the matrices; with the masks that a GPU has."""
    monkeypatch.setattr("pml_ext.pairwise.masks._FLOATS_ON", ())
    function = benchmark.floor if name == "floor" else registry.build(name, "loss")
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert benchmark.account_of(function, x, torch.arange(1024) // 4).traffic / (4 * 1024**2) <= most


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("cbml", 7.6),
        ("angular", 4.1),
        ("n-pair", 3.6),
        ("n-pair-angular", 5.1),
        ("batch-all-triplets", 5.6),
        ("tiled-multi-similarity", 5.6),
    ],
)
def test_peak_memory_of_a_loss_is_bounded(name, most):
    """In matrices of 1,024 embeddings; masks are matrices of floats where that is faster."""
    loss = registry.build(name, "loss")
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert benchmark.peak_bytes(loss, x, torch.arange(1024) // 4) / (4 * 1024**2) <= most


def test_operators_that_compute_are_counted():
    def step(embeddings, labels):
        return (embeddings.view(-1) * 2).exp().sum()

    x = torch.ones(4, 2).requires_grad_()
    forward = 3  # product, exponential, sum
    backward = 3  # the gradient's 1, products by the exponential and by 2
    assert forward + backward <= benchmark.account_of(step, x, torch.arange(4)).operators <= forward + backward + 1


@pytest.mark.parametrize(
    ("name", "of_booleans", "of_floats"),
    [  # of forward and backward at 32 x 64 in torch 2.15; other versions of torch differ by some
        ("cbml", 64, 66),
        ("angular", 42, 38),
        ("n-pair", 38, 35),
        ("n-pair-angular", 55, 53),
        ("batch-all-triplets", 48, 49),
        ("tiled-multi-similarity", 36, 33),
    ],
)
@pytest.mark.parametrize("device", ["gpu", "cpu"])  # a GPU has boolean masks, and its time is that of the operators
def test_a_loss_has_no_more_operators(name, of_booleans, of_floats, device, monkeypatch):
    if device == "gpu":
        monkeypatch.setattr("pml_ext.pairwise.masks._FLOATS_ON", ())
    known = of_booleans if device == "gpu" else of_floats
    (row,) = (row for row in bench([name], [Shape(32, 64, 4)], repeats=1, device="cpu") if row.loss == name)
    assert row.operators <= 1.1 * known


def test_much_traffic_is_left_out_of_larger_batches():
    losses = ["softmax", "cbml"]
    shapes = [Shape(8, 4, 2), Shape(16, 4, 2)]
    _, little, much = bench(losses, shapes[:1], repeats=1, device="cpu")
    rows = bench(losses, shapes, repeats=1, device="cpu", most_traffic=(little.traffic + much.traffic) / 2)
    assert [row.loss for row in rows if row.shape == "16x4x2" and row.loss != "floor"] == ["softmax"]


@pytest.mark.parametrize("wrong", ["1024", "1024x512", "axbxc", "0x4x4", ""])
def test_texts_become_shapes_or_errors(wrong):
    shape = Shape.parse(" 1024x512x4")
    assert (shape, str(shape)) == (Shape(1024, 512, 4), "1024x512x4")
    with pytest.raises(ConfigError, match="BATCHxSIZExPER_CLASS, for example 1024x512x4, not "):
        Shape.parse(wrong)


def test_losses_that_need_settings_are_refused():
    with pytest.raises(ConfigError, match="regularized cannot be measured by its name: it needs loss, regularizer"):
        bench(["regularized"], SMALL)


def test_batches_double_and_failing_losses_are_left_out(monkeypatch):
    sizes = []

    class Failing(torch.nn.Module):
        def forward(self, embeddings, labels):
            sizes.append(len(embeddings))
            if len(embeddings) >= 128:
                raise RuntimeError("no memory\nat all")
            return embeddings.sum()

    rows = benchmark.scale([Failing()], Shape(64, 8, 4), 300, device="cpu", repeats=1)
    assert [(row.shape, row.loss) for row in rows if not row.failed] == [
        ("64x8x4", "floor"),
        ("64x8x4", "Failing"),
        ("128x8x4", "floor"),
        ("256x8x4", "floor"),
    ]
    assert [(row.shape, row.failed) for row in rows if row.failed] == [("128x8x4", "RuntimeError: no memory")]
    assert set(sizes) == {64, 128}
    monkeypatch.setattr(benchmark, "MEMORY", 64 * 64 * 4)
    rows = benchmark.scale([], Shape(64, 8, 4), 128, device="cpu", repeats=1)
    assert [row.shape for row in rows] == ["64x8x4"]


# The command


def test_command_writes_a_table_or_json(pml_ext_command):
    quick = ["bench", "cbml", "pml/contrastive", "--shapes=16x8x4,12x4x3", "--repeats=2", "--device=cpu", "--threads=1"]
    done = pml_ext_command(*quick)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert " ".join(lines[0].split()) == "shape loss ms x floor peak MiB matrices operators limit ms per s rounds"
    assert len(lines) == 2 + 2 * 3
    assert len({len(line.rstrip()) for line in lines}) == 1
    assert "measuring at 16x8x4, 2 rounds" in done.stderr
    rows = json.loads(pml_ext_command(*quick, "--json").stdout)
    assert [entry["shape"] for entry in rows] == ["16x8x4"] * 3 + ["12x4x3"] * 3
    assert rows[1]["loss"] == "cbml"


def test_steps_are_compared_with_a_bare_loop(pml_ext_command):
    done = pml_ext_command(
        "bench",
        "--run",
        "triplets/digits",
        "--set",
        "model.trunk.width=8",
        "--repeats=3",
        "--device=cpu",
        "--threads=1",
    )
    assert done.returncode == 0
    step, bare = (float(re.search(rf"^{name} +([\d.]+) *$", done.stdout, re.M)[1]) for name in ("step", "bare loop"))
    assert 0 < bare < 10 * step
    assert re.search(r"^step / bare loop: \d+\.\d{3} \(median of 3\)$", done.stdout, re.M)

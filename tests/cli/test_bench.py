"""The command bench."""

import json
import re

import pytest

from pml_ext.cli import bench, benchmark
from pml_ext.cli.benchmark import SHAPES, Row, Shape


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--run", "cbml/digits", "--shapes=8x4x2"], "--run measures the steps of a recipe; leave out losses and --sh"),
        (["--run", "cbml/digits", "--scale"], "leave out losses and --shapes, and --scale"),
        (["cbml", "--to", "64"], "--to goes with --scale"),
        (["cbml", "--scale", "--shapes=8x4x2,16x4x2"], "wanted one shape with --scale, from which the batch doubles"),
        (["cbml", "--set", "schedule.epochs=1"], "--data and --set go with --run RECIPE"),
        (["cbml", "--data", "x"], "--data and --set go with --run RECIPE"),
        (["cbml", "--shapes=8x4"], "8x4"),
    ],
)
def test_options_that_do_not_fit_are_refused(pml_ext_command, arguments, text):
    done = pml_ext_command("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_a_recipe_has_a_step_and_a_bare_loop(pml_ext_command):
    quick = ["--set", "model.trunk.width=8", "--repeats=3", "--device=cpu", "--threads=1"]
    done = pml_ext_command("bench", "--run", "triplets/digits", *quick)
    assert done.returncode == 0
    step, bare = (float(re.search(rf"^{name} +([\d.]+) *$", done.stdout, re.M)[1]) for name in ("step", "bare loop"))
    assert 0 < bare < 10 * step
    assert re.search(r"^step / bare loop: \d+\.\d{3} \(median of 3\)$", done.stdout, re.M)


def test_a_loss_that_failed_has_no_numbers():
    row = Row("8x4x2", "mine", failed="ValueError: no")
    assert bench._cells(row) == ["8x4x2", "mine", "", "", "", "", "", "", "", "ValueError: no"]


def test_the_default_run_ends_with_a_network(pml_ext_command, monkeypatch):
    """Its shapes are small to large, and losses of much traffic are left out of the large one."""
    shapes = [Shape.parse(text) for text in bench.SHAPES.split(",")]
    assert shapes == list(SHAPES)
    calls = []

    def measure(losses, shapes, **options):
        calls.append((losses, shapes, options["most_traffic"]))
        return [Row("8x4x2", "mine", milliseconds=1.0, per_second=8000.0, rounds=2)]

    monkeypatch.setattr(benchmark, "bench", measure)
    done = pml_ext_command("bench", "--repeats=2", "--device=cpu", "--threads=1")
    assert done.returncode == 0, done.stderr
    losses, measured_shapes, most_traffic = calls[0]
    assert {"cbml", "pml/contrastive"} <= set(losses)
    assert measured_shapes == shapes
    assert most_traffic == bench.MOST_TRAFFIC
    last = done.stdout.splitlines()[-1].split()
    assert last[:4] == ["64x1x28x28", "convnet", "+", "tiled-multi-similarity"]
    assert last[-1] == "2"
    pml_ext_command("bench", "cbml", "--device=cpu")
    assert calls[1][2] is None  # a loss that is named is measured at all shapes

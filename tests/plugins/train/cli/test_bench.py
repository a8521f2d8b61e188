"""The command bench."""

import json
import re

import pytest


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

"""The command bench."""

import json
import re


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
    quick = ["--set", "model.trunk.width=8", "--repeats=3", "--device=cpu", "--threads=1"]
    done = pml_ext_command("bench", "--run", "triplets/digits", *quick)
    assert done.returncode == 0
    step, bare = (float(re.search(rf"^{name} +([\d.]+) *$", done.stdout, re.M)[1]) for name in ("step", "bare loop"))
    assert 0 < bare < 10 * step
    assert re.search(r"^step / bare loop: \d+\.\d{3} \(median of 3\)$", done.stdout, re.M)

"""What a run's folder must hold, and damaged files of it."""

import itertools
import json
import shutil

import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import DataError

from .conftest import empty, garbage, halve


def another_network(path):
    state = torch.load(path)
    torch.save(state | {"embedder": {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}}, path)


def with_entry(**entries):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *itertools.product(("network.json", "checkpoints/model.pt"), (empty, halve, garbage)),
        ("network.json", lambda path: path.write_text("[1, 2]")),
        ("network.json", with_entry(channels=2)),
        ("network.json", with_entry(image_size=1)),
        ("checkpoints/model.pt", another_network),
    ],
)
def test_a_damaged_run_names_what_to_type(runs, tmp_path, name, damage):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("collection", "records", "figures"))
    damage(run / name)
    with pytest.raises(DataError) as caught:
        load_run(run, "cpu")
    text = str(caught.value)
    assert text.startswith(f"{run / name}: ")
    assert f"type: pml-ext report {run}" in text or name == "checkpoints/model.pt"
    assert name == "network.json" or "--resume" in text
    assert "\n" not in text
    assert len(text) < 600

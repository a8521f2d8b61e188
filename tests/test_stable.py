"""The page on what is stable: its list is what the code has, and its marks mark something."""

import json
import re
import runpy
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import pml_ext
from pml_ext import registry
from pml_ext_train.launch.launch import train

from .overrides import typed

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def stable():
    return runpy.run_path(str(DOCS / "stable.py"))


def test_the_list_is_what_its_command_writes(stable):
    assert stable["PATH"].read_text("utf-8") == stable["text"](), "type: python docs/stable.py"


def test_the_list_has_every_name_and_command(stable):
    lines = stable["PATH"].read_text("utf-8").splitlines()
    names = {re.match(r"pml_ext\.(\w+)", line)[1] for line in lines if line.startswith("pml_ext.")}
    assert {"CBMLLoss", "WithinClassWhitening", "load_run", "PmlExtError"} <= names
    assert set(pml_ext.__all__) - set(registry.registered("class")) <= names
    assert {
        "pml_ext.TotalWhitening(shrinkage=0.6, size=None)",
        "pml-ext train --out, -o",
        "optimizer.lr = 0.001",
        "metrics.json",
    } <= set(lines)
    commands = [name for name, (_, command) in registry.commands().items() if command.function.startswith("pml_ext")]
    assert len(commands) > 15
    listed = {line.partition("  #")[0] for line in lines}
    assert {f"pml-ext {name}" for name in commands} <= listed


def test_every_mark_on_a_name_marks_a_line(stable):
    lines = [line.partition("  # ") for line in stable["PATH"].read_text("utf-8").splitlines()]
    for pattern in stable["PROVISIONAL"]:
        marked = {mark for line, _, mark in lines if fnmatchcase(line, pattern)}
        assert marked == {"provisional"} or pattern.startswith("pml-ext "), pattern


def test_the_page_has_the_keys_of_metrics(tmp_path, without_report):
    page = (DOCS / "stable.md").read_text("utf-8")
    row = page.partition("| `metrics.json` | has the keys ")[2].partition("\n")[0]
    few = ["schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2"]
    train("cbml/digits", overrides=typed(few), out=tmp_path / "run", device="cpu")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert set(re.findall(r"`(\w+)`", row)) == set(metrics)

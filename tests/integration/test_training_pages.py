"""The pages about training: their first commands run as shown, with less to do, and print what the pages show."""

import re

import pytest

from ..pages import run_page

FEW_STEPS = ("--set", "sampler.iterations=2", "--set", "model.trunk.width=8", "--set", "evaluation.figures=few")
FEW_EPOCHS = ("--set", "schedule.epochs=2", "--set", "schedule.name=constant", "--set", "schedule.milestones=[]")
SHORT = {
    "train": (*FEW_STEPS, *FEW_EPOCHS),
    "compare": (*FEW_STEPS, *FEW_EPOCHS),
    "bench": ("--repeats", "1", "--threads", "1"),
    "show": (),
}


FIRST = re.compile(r"pml-ext (train cbml/digits --out|show mine.toml|train mine.toml|compare cbml/digits|bench) ?")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "count"), [("recipes", 3), ("compare", 1), ("scale", 2)])
def test_commands_print_what_pages_show(name, count, pml_ext_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def shorter(line):
        return SHORT[line.split()[1]] if FIRST.match(line) else None

    lines, _ = run_page(name, pml_ext_command, shorter, "bash|text|toml")
    assert len(lines) == count

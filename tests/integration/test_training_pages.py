"""The pages about training: their first commands run as shown, with less to do, and print what the pages show."""

import re
import shlex

import pytest

from ..pages import DOCS, blocks_of, not_printed

FEW_STEPS = ("--set", "sampler.iterations=2", "--set", "model.trunk.width=8", "--set", "evaluation.figures=few")
FEW_EPOCHS = ("--set", "schedule.epochs=2", "--set", "schedule.name=constant", "--set", "schedule.milestones=[]")
SHORT = {
    "train": (*FEW_STEPS, *FEW_EPOCHS),
    "compare": (*FEW_STEPS, *FEW_EPOCHS),
    "bench": ("--repeats", "1", "--threads", "1"),
    "show": (),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("recipes", ["train cbml/digits --out", "show mine.toml", "train mine.toml"]),
        ("compare", ["compare cbml/digits"]),
        ("scale", ["bench cbml", "bench --scale"]),
    ],
)
def test_commands_print_what_pages_show(name, wanted, pml_ext_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = ""
    missing = list(wanted)
    for language, block in blocks_of(DOCS / f"{name}.md", "bash|text|toml"):
        if own := re.match(r"# (\w+\.toml)\n", block):
            (tmp_path / own[1]).write_text(block)
        if language == "text":
            assert not not_printed(block, printed)
        for line in block.splitlines() if language == "bash" else ():
            if not missing or not line.startswith(f"pml-ext {missing[0]}"):
                continue
            _, command, *given = shlex.split(line, comments=True)
            done = pml_ext_command(command, *given, *SHORT[command])
            assert done.returncode == 0, done.stderr
            printed = done.stderr + done.stdout
            missing.pop(0)
    assert not missing

"""The plugin as a part of the program: found by its entry point, and left out without harm."""

import os
import subprocess
import sys

import pytest

from pml_ext import registry

PROGRAM = """
import sys
from pml_ext import registry
from pml_ext_train.cli import main

assert "fit" not in registry.commands()
assert not [name for name in registry.recipes() if name.startswith("fit/")]
for arguments in COMMANDS:
    sys.argv = ["pml-ext", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
assert "pml_ext_fit" not in sys.modules
"""


def test_the_command_and_its_recipes_are_found():
    plugin, _ = registry.commands()["fit"]
    assert plugin == "fit"
    names = {name for name in registry.recipes() if name.startswith("fit/")}
    photographs = {f"fit/photographs{kind}" for kind in ("", "-pretrained", "-fine-tuned")}
    assert names == photographs | {"fit/vectors", "fit/unlabeled", "fit/unlabeled-vectors"}


@pytest.mark.slow
def test_everything_else_runs_without_the_plugin(tmp_path):
    few = ["schedule.epochs=1", "schedule.name=constant", "sampler.iterations=1", "model.trunk.width=8"]
    options = [word for setting in few for word in ("--set", setting)]
    run = str(tmp_path / "run")
    commands = [
        ["list"],
        ["train", "cbml/digits", "--quick", "--device", "cpu", "--out", run, *options],
        ["report", run],
        ["export", run, "-o", str(tmp_path / "out")],
    ]
    environment = {**os.environ, "PML_EXT_BLOCK": "fit"}
    program = PROGRAM.replace("COMMANDS", repr(commands))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()
    words = [sys.executable, "-m", "pml_ext", "fit", "photos"]
    refused = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "No such command 'fit'" in refused.stderr

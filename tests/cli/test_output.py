"""Progress and messages on stderr."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from pml_ext.cli.output import Progress

FEW = "evaluation.figures=few schedule.epochs=2 schedule.milestones=[1] sampler.iterations=2 model.trunk.width=8"


QUICK = [argument for key in FEW.split() for argument in ("--set", key)]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("stream", ["full disk", "no reader"])
def test_messages_that_cannot_be_written_end_no_run(tmp_path, stream):
    if stream == "full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    line = [sys.executable, "-m", "pml_ext", "train", "cbml/digits", "--quick", "--device", "cpu", "--json", *QUICK]
    done = subprocess.run([*line, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=writer)
    assert done.returncode == 0
    assert json.loads(done.stdout)["after"]
    done = subprocess.run([*line, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (2, b"")  # the folder exists


def test_a_terminal_has_a_bar():
    for terminal in (True, False):
        written = io.StringIO()
        with Progress(Console(file=written, force_terminal=terminal, width=100)) as listener:
            listener.step("cbml/digits, seed 0")
            listener.iteration(1, 1, 5, 0.25)
            listener._bar.refresh()
            listener.warn("careful")
        assert ("epoch 1: loss 0.2500" in written.getvalue()) is terminal
        assert any("warning: careful" in line for line in written.getvalue().splitlines())

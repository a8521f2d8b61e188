"""Progress and messages on stderr."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from pml_ext_train.cli.output import Progress, print_table

FEW = "evaluation.figures=few schedule.epochs=2 schedule.milestones=[1] sampler.iterations=2 model.trunk.width=8"


QUICK = [argument for key in FEW.split() for argument in ("--set", key)]


# Each command is a fork of one process that has imported what it needs, which takes most of its time otherwise. Its
# garbage collector leaves alone what was imported: it would copy all pages of memory, and again at its end.
COMMANDS = """
import gc, os, sys
import record_keeper, sklearn.neighbors, torchvision.transforms.v2
import pml_ext_train.launch.launch, pml_ext_train.results.finish
from pml_ext_train.cli import main

pml_ext_train.results.finish.write_run_report = lambda *_: None  # as the fixture without_report

gc.freeze()
place, streams, *arguments = sys.argv[1:]
for stream in streams.split(","):
    for number in (1, 2):  # the second time, the folder exists
        child = os.fork()
        if child == 0:
            os.dup2(os.open(f"{place}/{stream}-{number}.json", os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(int(stream), 2)
            sys.argv = ["pml-ext", *arguments, "--out", f"{place}/{stream}"]
            main()
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
gc.unfreeze()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_messages_that_cannot_be_written_end_no_run(tmp_path):
    full_disk = os.open("/dev/full", os.O_WRONLY)
    reader, no_reader = os.pipe()
    os.close(reader)
    streams = [full_disk, no_reader]
    line = ["train", "cbml/digits", "--quick", "--device", "cpu", "--json", *QUICK]
    command = [sys.executable, "-c", COMMANDS, str(tmp_path), f"{full_disk},{no_reader}", *line]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, pass_fds=streams)
    for stream in streams:
        os.close(stream)
        assert json.loads((tmp_path / f"{stream}-1.json").read_text())["after"]
        assert (tmp_path / f"{stream}-2.json").read_bytes() == b""
    assert done.stdout.split() == ["0", "2"] * 2


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_alone_has_a_bar(terminal):
    written = io.StringIO()
    with Progress(Console(file=written, force_terminal=terminal, width=100)) as listener:
        listener.iteration(1, 1, 5, 0.25)
        listener._bar.refresh()
        listener.warn("careful")
    assert ("epoch 1: loss 0.2500" in written.getvalue()) is terminal
    assert any("warning: careful" in line for line in written.getvalue().splitlines())


def test_a_warning_of_several_runs_is_written_once(capsys):
    with Progress() as bar:
        for text in ("one", "two", "one"):
            bar.warn(text)
    assert capsys.readouterr().err.splitlines() == ["warning: one", "warning: two"]


@pytest.mark.parametrize("width", [40, 80])
def test_paths_in_tables_stay_on_one_line(capsys, width):
    path = f"photographs of birds/{'a' * 70}.jpg"
    text = "a text that is longer than the terminal is wide and is therefore folded to several lines"
    print_table(["image", "distance", ""], [[path, "0.5", text]], right=[1], width=width)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"{path}  ")
    print_table(["name", ""], [["cbml/digits", text]], width=width)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width

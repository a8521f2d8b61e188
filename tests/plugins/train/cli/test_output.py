"""What commands print: progress and messages on stderr, results on stdout."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from pml_ext_train.cli.output import Progress, print_table
from pml_ext_train.cli.results import print_results
from pml_ext_train.results.verdict import shown_phases

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


def test_train_writes_a_table_on_stdout_alone(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", str(tmp_path / "a"), "--device", "cpu", *QUICK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cbml/digits, %"
    assert re.split(r" {2,}", lines[1].strip()) == [
        "raw pixels",
        "untrained network",
        "trained network",
        "trained network, training images",
    ]
    assert [line for line in lines if line.startswith("Recall@1 ")]
    assert lines[-1] == f"report: {tmp_path}/a/report.html"
    told = r"epoch 1 of 2: loss \d\.\d{4}, \d+ images/s, 0:00:\d\d left\nepoch 2 of 2: .* 0:00:00 left\n"
    assert re.search(told, done.stderr), done.stderr


@pytest.mark.usefixtures("without_report")
def test_train_writes_json_on_stdout_alone(pml_ext_command, tmp_path):
    done = pml_ext_command(
        "train",
        "cbml/digits",
        "--out",
        str(tmp_path / "b"),
        "--json",
        "--seeds",
        "2",
        *QUICK,
        "--set",
        "evaluation.baselines=false",
    )
    value = json.loads(done.stdout)
    assert value["summary"]["cbml/digits"]["after"]["nmi"]["mean"] > 0
    assert len(value["runs"]) == 2


PHASES = ("raw", "frozen", "pca", "before", "head", "blocks", "after", "features", "training", "learned_metric")
NAMES = ("recall_at_1", "r_precision", "map_at_r", "nmi_majority", "f1")


def result(recipe="fit/photographs-pretrained/then-all", phases=PHASES, **more):
    metrics = {phase: dict.fromkeys(NAMES, 1 - place / 64) for place, phase in enumerate(phases)}
    return {"recipe": recipe, "seed": 0, "folder": "run", "seconds": {"train": 1.0}, **metrics, **more}


@pytest.mark.parametrize("runs", [1, 3])
def test_a_table_fits_into_80_columns(monkeypatch, capsys, runs):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 80)
    print_results([result() for _ in range(runs)], None, as_json=False, quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    values = " ".join(lines).split()
    for place in range(len(PHASES)):  # whole numbers, each in every metric
        assert values.count(f"{100 - 100 * place / 64:.1f}") >= len(NAMES)
    words = {word for line in lines for word in line.split()}
    assert {"untrained", "embeddings", "shortlist"} & words == {"untrained"}
    assert {"features", "network,", "images", "Recall@1"} <= words


def test_a_run_without_training_has_no_equal_columns(capsys):
    same = {"before": {"recall_at_1": 0.5}, "frozen": {"recall_at_1": 0.5}, "after": {"recall_at_1": 0.5}}
    about = result("r", (), raw={"recall_at_1": 0.25}, training={"recall_at_1": 0.75}, epochs=0, **same)
    print_results([about], None, as_json=False, quick=True)
    title, heads, _, row = capsys.readouterr().out.splitlines()[:4]
    assert title == "r, %"
    assert [head.strip() for head in heads.split("   ") if head.strip()] == [
        "raw pixels",
        "frozen trunk",
        "features of training images",
    ]
    assert row.split() == ["Recall@1", "25.0", "50.0", "75.0"]


@pytest.mark.parametrize(
    ("about", "titles"),
    [
        ({"raw": 1.0, "frozen": 1.0, "after": 1.0}, ["raw pixels", "frozen trunk"]),  # pixels are no features
        ({"raw": 1.0, "after": 1.0, "training": 1.0, "input": "vectors"}, ["raw vectors"]),
        ({"after": 0.5, "training": 1.0}, ["features, nothing trained", "features of training images"]),
    ],
)
def test_columns_of_what_is_taken_as_it_is(about, titles):
    metrics = {"epochs": 0}
    for phase, value in about.items():
        metrics[phase] = value if phase == "input" else {"recall_at_1": value}
    assert list(shown_phases(metrics).values()) == titles


def test_a_report_path_stays_on_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    folder = tmp_path / "a folder with a name of several words"
    folder.mkdir()
    (folder / "report.html").touch()
    metrics = {"recipe": "cbml/digits", "after": {"recall_at_1": 0.5}, "folder": str(folder)}
    print_results([metrics], None, as_json=False, quick=True)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"

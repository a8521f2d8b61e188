"""What pml-ext train prints where."""

import json
import re

import pytest

FEW = "evaluation.figures=few schedule.epochs=2 schedule.milestones=[1] sampler.iterations=2 model.trunk.width=8"


QUICK = [argument for key in FEW.split() for argument in ("--set", key)]


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

"""Whole runs on digits: what is written, resuming, several seeds, stages, components that take part, and failures."""

import math
import re
import shutil
from pathlib import Path

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.files import read_json
from pml_ext_train.files.checksums import changed_files
from pml_ext_train.launch.launch import FailedRunsError, draw_report, train
from pml_ext_train.launch.plan import plan
from pml_ext_train.records.summary import summarize

from ..overrides import typed
from ..plugins.train.training.whole_runs import QUICK, quick


def test_an_existing_folder_is_refused_and_left_alone(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for call, text in (
        (lambda: quick(out), "exists; add --resume"),
        (
            lambda: quick(out, "loss.mvc_weight=0.5", resume=True),
            r"loss.mvc_weight is 1.0 in the run to resume, but 0.5 now",
        ),
        (lambda: quick(out, seed=1, resume=True), "seed 0, not 1; type --seed 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()
    quick(out, resume=True)  # finished: only read
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


@pytest.mark.usefixtures("without_report")
def test_several_seeds_and_variants_are_summarized(tmp_path):
    out = tmp_path / "seeds"
    out.mkdir()
    (out / ".summary.json.4194305.tmp").write_text("half")  # of a process that was killed
    results = train("cbml/digits", out=out, seeds=2, overrides=typed(QUICK), device="cpu", resume=True)
    assert [result["seed"] for result in results] == [0, 1]
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-1", "summary.json"}
    summary = read_json(out / "summary.json")
    assert summary == summarize(results)
    values = [result["after"]["map_at_r"] for result in results]
    entry = summary["cbml/digits"]["after"]["map_at_r"]
    assert entry["mean"] == pytest.approx(sum(values) / 2)
    assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    names = [each.folder.name for each in plan("cbml/omniglot-small-mvc-weight", out=tmp_path / "x", seeds=2)]
    assert names[:3] == ["0.0-seed-0", "0.0-seed-1", "0.1-seed-0"]
    labels = tmp_path / "labels.toml"
    labels.write_text('extends = "cbml/digits"\n[sweep.any.".."]\n[sweep.any."a/b"]\n')
    assert [each.folder for each in plan(str(labels), out=out / "x")] == [out / "x" / "-", out / "x" / "a-b"]


@pytest.mark.usefixtures("without_report")
def test_a_failed_run_leaves_other_runs(tmp_path, pml_ext_command):
    recipe = tmp_path / "mine.toml"
    out = tmp_path / "out"
    recipe.write_text('extends = "cbml/digits"\n[sweep]\n"sampler.batch_size" = [75, 80]\n')
    sets = [f"--set={override}" for override in (*QUICK, "schedule.epochs=1", "schedule.milestones=[1]")]
    done = pml_ext_command("train", recipe, "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 1
    summary = read_json(out / "summary.json")
    (failure,) = summary.pop("failures")
    assert failure.pop("error").startswith("sampler: found batch_size = 75; 10 classes x m = 8")
    assert failure == {"recipe": f"{recipe}@75", "seed": 0, "folder": str(out / "75")}
    assert list(summary) == [f"{recipe}@80"]
    assert [path.parent.name for path in out.glob("*/metrics.json")] == ["80"]
    assert not (out / "75").exists()
    assert "trained network" in done.stdout
    assert f"warning: {recipe}@75, seed 0, in {out / '75'} failed: sampler: found batch_size = 75" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"pml-ext: 1 of 2 runs failed: {recipe}@75, seed 0")
    assert "Traceback" not in done.stderr
    with pytest.raises(FailedRunsError, match="2 of 2 runs failed") as caught:
        train(
            "cbml/digits", tmp_path / "none", seeds=2, overrides=typed([*QUICK, "sampler.batch_size=75"]), device="cpu"
        )
    assert len(caught.value.failures) == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("name", ["report.html", "network.json", "recipe.toml", "metrics.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["garbage", "empty"])
def test_damaged_files_are_named_with_remedies(finished, tmp_path, pml_ext_command, name, damage):
    """The text of every command has what to do; that is done here, and the file is as it was."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = (out / name).read_bytes()
    (out / name).write_bytes({"garbage": b"\x80garbage\xff" * 50, "empty": b""}[damage])
    said = []
    for line in (["report", out], ["export", out, "--out", tmp_path / "x"], ["compare", out]):
        done = pml_ext_command(*line)
        if done.returncode != 0:
            text = done.stderr.splitlines()[-1]
            assert str(out / name) in text
            assert "--debug" not in text  # an error that nobody foresaw
            assert re.search("pml-ext report|--resume", text)
            said.append(text)
    if any("delete it and repeat" in text for text in said):
        (out / name).unlink()
    if any("--resume" in text for text in said):
        quick(out, resume=True)
    elif said:
        draw_report(out, "cpu")
    if name in ("network.json", "recipe.toml"):
        assert (out / name).read_bytes() == whole
    assert name == "report.html" or changed_files(out) == []
    assert pml_ext_command("export", out, "--out", tmp_path / "y").returncode == 0


@pytest.mark.parametrize(
    ("given", "restarts", "text"),
    [
        (
            {"out": Path("mistyped"), "resume": True},
            "0",
            "mistyped: there is no run to resume; correct --out, or leave out",
        ),
        (
            {"out": Path("mine"), "resume": True},
            "0",
            r"mine has other files and no run \(no recipe.toml\); choose another --",
        ),
        ({"resume": True}, "0", "--resume needs --out, .*; type --out RUN --resume"),
        ({}, "0", r"runs/cbml-digits-0-\S+ cannot be written .*runs\); type --out FOLDER$"),
        ({}, "3", "torchrun --max-restarts needs --out"),
    ],
)
def test_folders_that_cannot_have_a_run(tmp_path, monkeypatch, given, restarts, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", overrides=typed(QUICK), device="cpu", **given)
    assert not (tmp_path / "mistyped").exists()

"""Whole runs on digits: what is written, resuming, several seeds, stages, components that take part, and failures."""

import math
import re
import shutil

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
    line = ["train", str(recipe), "--out", str(out), "--device", "cpu"]
    for override in (*QUICK, "schedule.epochs=1", "schedule.milestones=[1]"):
        line += ["--set", override]
    done = pml_ext_command(*line)
    assert done.returncode == 1
    summary = read_json(out / "summary.json")
    (failure,) = summary.pop("failures")
    assert (failure["recipe"], failure["seed"], failure["folder"]) == (f"{recipe}@75", 0, str(out / "75"))
    assert failure["error"].startswith("sampler: found batch_size = 75; 10 classes x m = 8")
    assert list(summary) == [f"{recipe}@80"]
    assert (out / "80" / "metrics.json").exists()
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


def test_resuming_what_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"mistyped: there is no run to resume; correct --out, or leave out --resume"):
        quick(tmp_path / "mistyped", resume=True)
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"mine has other files and no run \(no recipe.toml\); choose another --out"):
        quick(tmp_path / "mine", resume=True)
    with pytest.raises(ConfigError, match="--resume needs --out, .*; type --out RUN --resume"):
        plan("cbml/digits", resume=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"runs/cbml-digits-0-\S+ cannot be written .*runs\); type --out FOLDER$"):
        plan("cbml/digits")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ConfigError, match="torchrun --max-restarts needs --out"):
        plan("cbml/digits")

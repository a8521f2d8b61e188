"""What a run that was begun goes on with."""

import os
import signal

import pytest

from pml_ext.errors import ConfigError, DataError, StoppedError
from pml_ext_fit import resume, selection
from pml_ext_fit.candidates import features_of_images
from pml_ext_fit.commands import fit
from pml_ext_train.files import locked_folder
from pml_ext_train.files.checksums import replace_file
from pml_ext_train.launch import launch


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path):
    lines = []
    assert resume.begun_run(tmp_path, f"folder:{photos}", lines.append) is None
    file = tmp_path / "recipe.toml"
    file.write_text(f'[data]\nname = "folder:{photos}"\n[run]\nrecipe = "fit/photographs"\nseed = 1\n')
    tables = resume.begun_run(tmp_path, f"folder:{photos}", lines.append)
    assert tables["run"]["recipe"] == "fit/photographs"
    with pytest.raises(ConfigError, match="holds a run of folder:.*, not of folder:others"):
        resume.begun_run(tmp_path, "folder:others", lines.append)
    assert lines == []


@pytest.mark.parametrize("change", ["lr = 0.2", "lr = "])
def test_a_damaged_recipe_is_not_taken(tmp_path, change):
    text = 'lr = 0.1\n[data]\nname = "folder:photos"\n[run]\nseed = 0\n'
    replace_file(tmp_path, "recipe.toml", lambda file: file.write_text(text))
    (tmp_path / "recipe.toml").write_text(text.replace("lr = 0.1", change))
    lines = []
    assert resume.begun_run(tmp_path, "folder:photos", lines.append) is None
    assert lines == [f"{tmp_path / 'recipe.toml'} is damaged; it is written again"]


@pytest.mark.usefixtures("weights")
def test_a_killed_run_resumes_with_its_choice(photos, monkeypatch, capsys, out, images):
    decision = selection.Decision(features_of_images(images), "as found")
    trained = []

    def killed(*_, **given):
        trained.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(selection, "choose", lambda *_: decision)
    monkeypatch.setattr("pml_ext_fit.workflows.train", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out)
    monkeypatch.setattr(selection, "choose", None)
    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out, resume=True)
    assert trained[0] == {**trained[1], "listener": trained[0]["listener"]}
    assert trained[0]["resume"]
    assert "goes on with what was chosen before: frozen features" in capsys.readouterr().err
    (plan,) = launch.plan(decision.choice().recipe, out, overrides=trained[1]["overrides"], resume=True)
    assert plan.recipe.description == "as found"
    with pytest.raises(ConfigError, match=r"run exists; add --resume"):
        fit(photos, out=out)
    (out / "choice.json").write_text('{"data": ')
    with pytest.raises(DataError, match=r"choice.json: not what a command has chosen .* delete it, and --resume"):
        fit(photos, out=out, resume=True)


@pytest.mark.usefixtures("weights")
def test_trials_that_are_stopped_begin_again(photos, tmp_path, monkeypatch, out):
    monkeypatch.setattr(selection, "choose", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(
        StoppedError, match=r"stopped by SIGTERM in the trials.* with --out .*run --resume, which makes"
    ):
        fit(photos, out=out)
    tried = []

    def fails(*_):
        tried.append(out.is_dir())
        raise DataError("no images")

    monkeypatch.setattr(selection, "choose", fails)
    with pytest.raises(DataError):
        fit(photos, out=out, resume=True)
    assert tried == [True]
    assert out.is_dir()  # it was there before
    with pytest.raises(DataError):
        fit(photos, out=tmp_path / "other")
    assert tried == [True, True]
    assert not (tmp_path / "other").exists()
    (out / "letter.txt").write_text("of somebody")
    with pytest.raises(ConfigError, match=r"run has other files and no run \(no recipe.toml\); choose another --out"):
        fit(photos, out=out, resume=True)
    assert len(tried) == 2


@pytest.mark.usefixtures("weights")
def test_trials_leave_nothing_in_the_folder(photos, monkeypatch, out):
    (out / "trials" / "of a killed process").mkdir(parents=True)

    def choose(images, trunk, place, *_):
        assert (place.folder, [*place.folder.iterdir()]) == (out / "trials", [])
        raise DataError("no images")

    monkeypatch.setattr(selection, "choose", choose)
    with pytest.raises(DataError):
        fit(photos, out=out, resume=True)
    assert [path.name for path in out.iterdir()] == [".lock"]


@pytest.mark.usefixtures("weights")
def test_a_second_command_during_trials_is_refused(photos, monkeypatch, out):
    monkeypatch.setattr(selection, "choose", None)
    with locked_folder(out), pytest.raises(ConfigError, match="run is being written by another run; wait for it"):
        fit(photos, out=out, resume=True)

"""What a run that was begun goes on with."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import tomli_w

from pml_ext import choice
from pml_ext.choice import candidates, interrupted
from pml_ext.cli.train import train
from pml_ext.errors import ConfigError, DataError, StoppedError
from pml_ext.files.checksums import replace_file
from pml_ext.recipe import load_recipe
from pml_ext.recipe.images import describe_images
from pml_ext.training import launch

from ..overrides import typed
from ..training.made_up_photos import write_photos
from .helpers import needs_weights


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path):
    found = describe_images(photos)
    lines = []
    assert interrupted.begun_run(tmp_path, found, lines.append) is None
    file = tmp_path / "seed-1" / "recipe.toml"
    file.parent.mkdir()
    file.write_text(f'[data]\nname = "folder:{photos}"\n[run]\nrecipe = "pml/photographs"\nseed = 1\n')
    begun = interrupted.begun_run(tmp_path, found, lines.append)
    assert Path(begun.file) == file
    assert begun.recipe == "pml/photographs"
    file.write_text('[data]\nname = "folder:others"\n[run]\nseed = 1\n')
    with pytest.raises(ConfigError, match="holds a run of folder:others, not of folder:"):
        interrupted.begun_run(tmp_path, found, lines.append)
    assert lines == []


@pytest.mark.parametrize("change", ["lr = 0.2", "lr = "])
def test_a_damaged_recipe_is_not_taken(photos, tmp_path, change):
    text = f'lr = 0.1\n[data]\nname = "folder:{photos}"\n[run]\nseed = 0\n'
    replace_file(tmp_path, "recipe.toml", lambda file: file.write_text(text))
    (tmp_path / "recipe.toml").write_text(text.replace("lr = 0.1", change))
    lines = []
    assert interrupted.begun_run(tmp_path, describe_images(photos), lines.append) is None
    assert lines == [f"{tmp_path / 'recipe.toml'} is damaged; it is written again"]


def test_a_resumed_recipe_keeps_the_settings_of_its_images(photos, tmp_path, monkeypatch):
    place = shutil.copytree(photos, tmp_path / "photos")
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda _, **given: begun.append(given["overrides"]) or [])
    train(choice.SMALL, images=place, out=tmp_path / "run")
    write_recipe(tmp_path / "run", choice.SMALL, begun[0])
    shutil.rmtree(place)
    write_photos(place, classes=6, each=12)
    train(choice.SMALL, images=place, out=tmp_path / "run", resume=True)
    first, second = [load_recipe(choice.SMALL, typed(overrides)) for overrides in begun]
    assert first == second


def write_recipe(folder, name, settings):
    folder.mkdir()
    tables = load_recipe(name, typed(settings)).as_dict()
    (folder / "recipe.toml").write_text(tomli_w.dumps({**tables, "run": {"recipe": name, "seed": 0}}))


def test_a_killed_run_goes_on_with_what_was_chosen(photos, tmp_path, monkeypatch, capsys):
    needs_weights()
    out = tmp_path / "run"
    known = candidates.candidates(describe_images(photos))[0]
    chosen = candidates.Choice(known.recipe, [*known.settings, 'description="as found"'], known.title)
    begun = []

    def killed(*_, **given):
        begun.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(choice, "choose", lambda *_: chosen)
    monkeypatch.setattr("pml_ext.training.launch.train", killed)
    with pytest.raises(KeyboardInterrupt):
        train(images=photos, out=out)
    monkeypatch.setattr(choice, "choose", None)
    with pytest.raises(KeyboardInterrupt):
        train(images=photos, out=out, resume=True)
    assert begun[0] == {**begun[1], "listener": begun[0]["listener"]}
    assert begun[0]["resume"]
    assert "goes on with what was chosen before: frozen features" in capsys.readouterr().err
    (plan,) = launch.plan(chosen.recipe, out, overrides=typed(begun[1]["overrides"]), resume=True)
    assert plan.recipe.description == "as found"
    with pytest.raises(ConfigError, match=r"run exists; add --resume"):
        train(images=photos, out=out)
    (out / "choice.json").write_text('{"data": ')
    with pytest.raises(DataError, match=r"choice.json: not what a command has chosen .* delete it, and --resume"):
        train(images=photos, out=out, resume=True)


def test_trials_that_are_stopped_begin_again(photos, tmp_path, monkeypatch):
    needs_weights()
    out = tmp_path / "run"
    monkeypatch.setattr(choice, "choose", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(
        StoppedError, match=r"stopped by SIGTERM in the trials.* with --out .*run --resume, which makes"
    ):
        train(images=photos, out=out)
    tried = []

    def fails(*_):
        tried.append(out.is_dir())
        raise DataError("no images")

    monkeypatch.setattr(choice, "choose", fails)
    with pytest.raises(DataError):
        train(images=photos, out=out, resume=True)
    assert tried == [True]
    assert out.is_dir()  # it was there before
    with pytest.raises(DataError):
        train(images=photos, out=tmp_path / "other")
    assert tried == [True, True]
    assert not (tmp_path / "other").exists()
    (out / "letter.txt").write_text("of somebody")
    with pytest.raises(ConfigError, match=r"run holds no run \(no recipe.toml in it\); choose another --out"):
        train(images=photos, out=out, resume=True)
    assert len(tried) == 2

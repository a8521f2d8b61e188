"""Recipes from files: what they extend, and one line for a file that is wrong."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import load_recipes, origin_of, pipelines, read_tables, variant_tables

from .recipes import one, write


def test_another_data_set_keeps_how_images_are_read(tmp_path):
    data = 'data = { workers = 2, unreadable = "skip", labels = "clusters", pseudo = { clusters = 7 } }'
    parent = write(tmp_path, f'extends = "cbml/digits"\n{data}\n', "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[data]\nname = "digits-unseen"\n', "child.toml")
    for recipe in (one(child), one(parent, "data.name=digits-unseen")):
        assert recipe.data.name == "digits-unseen"
        assert (recipe.data.workers, recipe.data.unreadable) == (2, "skip")
        assert (recipe.data.labels, recipe.data.pseudo.clusters) == ("clusters", 7)


def test_extended_choices_keep_the_recipes_origins(tmp_path):
    write(tmp_path, 'extends = "cbml/digits"\n[origin]\nloss = "paper"\noptimizer = "program"\n', "other.toml")
    sweep = '[sweep.data.other]\nextends = "other.toml"\n[sweep.data.own]\n[sweep.rows.a]\nloss = { epsilon = 0.2 }\n'
    origin = '[origin]\n"loss.epsilon" = "paper, Table 1"\noptimizer = "ours"\n'
    file = write(tmp_path, f'extends = "cbml/digits"\n{sweep}{origin}', "swept.toml")
    of = variant_tables(file)[f"{file}@other,a"]["origin"]
    keys = ("loss.epsilon", "loss.beta_pos", "optimizer.lr")
    assert [origin_of(key, of) for key in keys] == ["paper, Table 1", "paper", "ours"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss = ", "mine.toml: not valid TOML: Invalid value"),
        ('extends = "mine.toml"', "extends itself"),
        ('extends = "cbml/digit"', "extends: no recipe 'cbml/digit'; nearest: cbml/digits"),
        ("[loss]\nname = 'cbml'", "mine.toml: data: missing"),
    ],
)
def test_files_that_are_no_recipes_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_recipes(write(tmp_path, text))
    with pytest.raises(ConfigError, match="no such recipe file"):
        load_recipes(str(tmp_path / "absent.toml"))


def test_a_file_extends_a_file_beside_it(tmp_path):
    assert one("cbml/omniglot-small").paper is not None
    assert one(write(tmp_path, 'extends = "cbml/omniglot-small"\n')).paper is None  # a paper is not inherited
    write(tmp_path, 'extends = "cbml/digits"\n[loss]\nmvc_weight = 0.5\n', "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[schedule]\nepochs = 13\n')
    recipe = one(child)
    assert (recipe.loss.settings["mvc_weight"], recipe.schedule.epochs) == (0.5, 13)
    assert read_tables(child)["sampler"]["m"] == 8


def test_folders_may_have_the_sign_of_variants(tmp_path):
    (tmp_path / "with@sign").mkdir()
    file = write(tmp_path / "with@sign", 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [0.0, 1.0]\n')
    assert list(load_recipes(file)) == [f"{file}@0.0", f"{file}@1.0"]
    assert one(f"{file}@1.0").loss.settings["mvc_weight"] == 1.0


def test_a_variant_in_another_file_is_extended(tmp_path, monkeypatch):
    write(tmp_path, 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [0.5, 1.0]\n', "base.toml")
    child = write(tmp_path, 'extends = "base.toml@0.5"\n')
    monkeypatch.chdir("/")
    assert one(child).loss.settings["mvc_weight"] == 0.5


def test_files_that_are_no_recipes_are_no_pipelines(tmp_path, monkeypatch):
    (tmp_path / "pipelines").mkdir()
    for name in ("mine.toml", "mine.toml~", ".DS_Store"):
        write(tmp_path / "pipelines", "", name)
    monkeypatch.setattr("pml_ext_train.recipe.read.importlib.resources.files", lambda _: tmp_path)
    assert list(pipelines()) == ["pipelines/mine"]

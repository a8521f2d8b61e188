"""The plugins that recipes name, and what is said of those that are missing."""

import pytest

from pml_ext import registry
from pml_ext.errors import PluginError
from pml_ext_search.trained import load_run
from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import names_in

pytestmark = pytest.mark.usefixtures("isolated_registry")


def test_names_in_a_recipe_are_found():
    named = names_in("cbml/digits")
    assert {("loss", "cbml"), ("data set", "digits"), ("trunk", "convnet")} <= named
    assert ("transform", "RandomAffine") in names_in("pml/ntxent/digits-unlabeled")
    assert names_in("nobody/knows-it") == set()


RUN = '[run]\nrecipe = "gone/digits"\nseed = 0\n[run.plugins]\ngone = {distribution = "gone-losses", version = "1.2"}\n'


def test_a_missing_plugin_comes_with_its_command(tmp_path, monkeypatch, install_loss):
    """A finished run, as far as it is read before that is noticed."""
    tables = registry.recipes()["cbml/digits"].read_text("utf-8")
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "recipe.toml").write_text(tables.replace('name = "cbml"', 'name = "gone"') + RUN)
    (folder / "network.json").write_text("{}")
    (folder / "metrics.json").write_text('{"recipe": "gone/digits", "seed": 0}')
    (folder / "checkpoints" / "model.pt").touch()
    text = r"recipe.toml: the plugin 'gone' of gone-losses 1.2 is not installed; run: pip install gone-losses==1.2"
    with pytest.raises(PluginError, match=text):
        load_run(folder)
    with pytest.raises(PluginError, match=text):
        plan(str(folder / "recipe.toml"), out=folder, resume=True)
    install_loss("gone", name="gone")
    monkeypatch.setenv("PML_EXT_BLOCK", "gone")
    with registry.isolated(), pytest.raises(PluginError, match="the plugin 'gone' is blocked, by PML_EXT_BLOCK"):
        load_run(folder)

"""The package that pml-ext new-plugin writes, and the names that it refuses."""

import tomllib

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.cli.scaffold import new_plugin


def test_writes_a_package_and_nothing_over_it(tmp_path):
    files = new_plugin("soft-margin-loss", tmp_path / "out")
    assert all(file.is_file() for file in files)
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pml_ext"] == {"soft-margin-loss": "soft_margin_loss"}
    assert "class SoftMarginLoss(" in (tmp_path / "out" / "src" / "soft_margin_loss" / "losses.py").read_text()
    for file in files:
        text = file.read_text()
        assert "{{" not in text
        if file.suffix == ".py":
            compile(text, str(file), "exec")
    described = "hinge between an anchor's mean similarity to negatives"
    assert all(
        described in " ".join(file.read_text().split()) for file in files if file.name in ("README.md", "losses.py")
    )
    with pytest.raises(ConfigError, match="exists and is not empty"):
        new_plugin("my-loss", tmp_path / "out")


REFUSED = {
    "kebab-case": ["MyLoss", "my_loss", ""],
    "taken by a plugin": ["cbml", "pml", "folder", "pml-ext"],
    "taken by a component": ["hard-pair", "n-pair-loss"],
    "taken by an installed package": ["json", "pytorch-metric-learning"],
    "taken by a keyword of Python; choose another, such as my-lambda": ["lambda"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for text, names in REFUSED.items() for name in names])
def test_names_that_a_plugin_cannot_have(tmp_path, name, text):
    with pytest.raises(ConfigError, match=text):
        new_plugin(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()

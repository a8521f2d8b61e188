"""What pml-ext new-plugin writes, and what it refuses."""

import tomllib

import pytest

from pml_ext.errors import ConfigError
from pml_ext.scaffold import new_plugin


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
    with pytest.raises(ConfigError, match="exists and is not empty"):
        new_plugin("my-loss", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MyLoss", "kebab-case"),
        ("my_loss", "kebab-case"),
        ("cbml", "taken by a plugin"),
        ("pml", "taken by a plugin"),
        ("", "kebab-case"),
        ("folder", "taken by a plugin"),
        ("pml-ext", "taken by a plugin"),
        ("hard-pair", "taken by a component"),
        ("n-pair-loss", "taken by a component"),
        ("json", "taken by an installed package"),
        ("pytorch-metric-learning", "taken by an installed package"),
    ],
)
def test_names_that_will_not_do(tmp_path, name, text):
    with pytest.raises(ConfigError, match=text):
        new_plugin(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()

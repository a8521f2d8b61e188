"""Settings are converted by annotations, and errors name the setting."""

from collections.abc import Sequence  # in an annotation that is a text
from enum import StrEnum
from pathlib import Path

import pytest

from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext_train.data import DataSplits, digits
from pml_ext_train.recipe import build_dataset
from pml_ext_train.recipe.build import build_trunk

from .recipes import one


class Mode(StrEnum):
    fast = "fast"


def plugins_images(
    root: "Path | None" = None,
    *,
    mode: "Mode" = Mode.fast,
    mask: "Path | None" = None,
    size: "Unknown" = 3,  # noqa: F821
    parts: "Sequence['Unknown']" = (),  # noqa: F821
    path: str = "",
) -> DataSplits:
    """A data set whose annotations are texts, and two of which stand for nothing."""
    assert mask is None or mask.name == "mask.png"
    if size > 5:
        raise ValueError(f"size must be at most 5, not {size}")
    assert mode is Mode.fast
    return digits()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.name=folder:photos", "data.split=classes"], "data.split: found 'classes'; input should be 'class' or"),
        (["data.name=folder:photos", "data.image_size=16.0"], "data.image_size: found 16.0; .* a valid integer"),
        (["data.name=folder:photos", "data.path=elsewhere"], "data.path: no setting of folder:photos 'path'"),
        (["data.mode=slow"], "data.mode: found 'slow'; input should be 'fast'"),
        (["data.mask=3"], "data.mask: found 3; input should be a valid string"),
        (["data.size=big"], "data.size: found 'big'; input should be a valid number"),
    ],
)
def test_data_options_are_checked_by_annotation(monkeypatch, overrides, message):
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    with pytest.raises(ConfigError, match=message):
        one("cbml/digits", *overrides)


def test_converted_data_options_build_the_data(monkeypatch):
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    overrides = ("data.mask=mask.png", "data.size=4", "data.parts=[1.5]", "data.path=p", "data.mode=fast")
    assert isinstance(build_dataset(one("cbml/digits", *overrides).data, None), DataSplits)
    with pytest.raises(ConfigError, match=r"data: digits refuses size = 7: size must be at most 5, not 7"):
        build_dataset(one("cbml/digits", "data.size=7").data, None)


FACTORIES_OF_NOTHING = """
from pml_ext.plugin import hookimpl

@hookimpl
def pml_ext_datasets():
    return {"nothing": lambda root: None, "unread": lambda root, size=1: 1 / 0}

@hookimpl
def pml_ext_trunks():
    return {"nothing": lambda in_channels, image_size: None}
"""


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("{name='nothing'}", "data: nothing of the plugin 'careless' gives NoneType; wanted pml_ext.plugin.DataSplits"),
        (
            "{name='unread'}",
            r"data: unread fails: ZeroDivisionError.*, in .*lambda> of the plugin 'careless', careless/__init__.py:6",
        ),
        ("{name='unread', size=2}", "data: unread refuses size = 2: ZeroDivisionError"),
    ],
)
def test_failing_factories_are_named_with_their_plugin(install_plugin, data, text):
    install_plugin("careless", FACTORIES_OF_NOTHING)
    recipe = one("cbml/digits", f"data={data}", "model.trunk={name='nothing'}")
    with pytest.raises(ConfigError, match=text):
        build_dataset(recipe.data, None)
    wanted = "model.trunk: nothing of the plugin 'careless' gives NoneType; wanted a torch.nn.Module"
    with pytest.raises(ConfigError, match=wanted):
        build_trunk(recipe.model.trunk, 1, 8)

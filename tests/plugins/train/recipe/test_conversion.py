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


def test_options_of_data_sets_are_checked_by_their_annotations(monkeypatch):
    for override, message in (
        ("split=classes", r"data.split: found 'classes'; input should be 'class' or 'image'"),
        ("image_size=16.0", r"data.image_size: found 16.0; input should be a valid integer"),
        ("path=elsewhere", r"data.path: no setting of folder:photos 'path'"),
    ):
        with pytest.raises(ConfigError, match=message):
            one("cbml/digits", "data.name=folder:photos", f"data.{override}")
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    for override, message in (
        ("mode=slow", "data.mode: found 'slow'; input should be 'fast'"),
        ("mask=3", "data.mask: found 3; input should be a valid string"),
        ("size=big", "data.size: found 'big'; input should be a valid number"),
    ):
        with pytest.raises(ConfigError, match=message):
            one("cbml/digits", f"data.{override}")
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
def test_factories_that_fail_are_named_with_their_plugin(install_plugin):
    install_plugin("careless", FACTORIES_OF_NOTHING)
    text = "data: nothing of the plugin 'careless' gives NoneType; wanted pml_ext.plugin.DataSplits"
    with pytest.raises(ConfigError, match=text):
        build_dataset(one("cbml/digits", "data.name=nothing").data, None)
    text = r"data: unread fails: ZeroDivisionError.*, in .*lambda> of the plugin 'careless', careless/__init__.py:6"
    with pytest.raises(ConfigError, match=text):
        build_dataset(one("cbml/digits", "data.name=unread").data, None)
    with pytest.raises(ConfigError, match="data: unread refuses size = 2: ZeroDivisionError"):
        build_dataset(one("cbml/digits", "data.name=unread", "data.size=2").data, None)
    text = "model.trunk: nothing of the plugin 'careless' gives NoneType; wanted a torch.nn.Module"
    with pytest.raises(ConfigError, match=text):
        build_trunk(one("cbml/digits", "model.trunk={name='nothing'}").model.trunk, 1, 8)

"""Names imported on first use, read from sources that are not run."""

import sys

import pytest

from pml_ext import lazy
from pml_ext.errors import MissingExtraError

SOURCE = """
from __future__ import annotations
import os.path
from typing import TYPE_CHECKING
from pml_ext.lazy import lazily

if TYPE_CHECKING:
    from .inner import VALUE as VALUE
    from .inner import OTHER as RENAMED
    from . import inner as inner
    from .broken import Late as Late
    from pml_ext_cbml import CBMLLoss as CBMLLoss
    import numpy as np

__getattr__ = lazily(__name__, "train", "the names of lazy_door")
"""


@pytest.fixture
def door(install_plugin):
    """A package whose names are imported on first use."""
    package = install_plugin("lazy_door", SOURCE)
    (package / "inner.py").write_text("VALUE = object()\nOTHER = 'other'\n")
    (package / "broken.py").write_text("import no_such_package\n")
    lazy._imports.cache_clear()
    yield __import__("lazy_door")
    for name in ("lazy_door.inner", "lazy_door.broken"):
        sys.modules.pop(name, None)
    lazy._imports.cache_clear()


def test_a_name_is_imported_on_first_use(door):
    assert "lazy_door.inner" not in sys.modules
    value = door.VALUE
    assert value is sys.modules["lazy_door.inner"].VALUE
    assert vars(door)["VALUE"] is value
    assert door.RENAMED == "other"
    assert door.inner is sys.modules["lazy_door.inner"]


def test_an_unknown_name_has_the_nearest(door):
    with pytest.raises(AttributeError, match="module 'lazy_door': no name 'VALEU'; nearest: VALUE"):
        door.VALEU  # noqa: B018
    with pytest.raises(AttributeError, match="no name '__wrapped__'"):
        door.__wrapped__  # noqa: B018
    with pytest.raises(AttributeError, match="no name 'np'"):  # of another package
        door.np  # noqa: B018


def test_a_missing_package_is_named_with_its_extra(door):
    text = "the names of lazy_door needs the package 'no_such_package', .* \"pml-ext.train.\""
    with pytest.raises(MissingExtraError, match=text):
        door.Late  # noqa: B018
    with pytest.raises(MissingExtraError, match="a page needs the package 'no_such_package'"):
        lazy.require_packages(["json", "no_such_package"], "browse", "a page")
    lazy.require_packages(["json"], "browse", "a page")


def test_imports_are_read_from_the_source_or_its_stub(door, tmp_path):
    own = {
        "VALUE": "lazy_door.inner.VALUE",
        "RENAMED": "lazy_door.inner.OTHER",
        "inner": "lazy_door.inner",
        "Late": "lazy_door.broken.Late",
    }
    assert lazy.own_imports("lazy_door") == own
    assert lazy.imports_of_plugins("lazy_door") == {"CBMLLoss": "pml_ext_cbml.CBMLLoss"}
    (file,) = tmp_path.rglob("lazy_door/__init__.py")
    file.with_suffix(".pyi").write_text("from .inner import VALUE as ONLY\n")
    lazy._imports.cache_clear()
    assert lazy.own_imports("lazy_door") == {"ONLY": "lazy_door.inner.VALUE"}
    assert lazy.own_imports("lazy_door.inner") == {}
    with pytest.raises(LookupError, match="no_such_package: no such module"):
        lazy.own_imports("no_such_package")

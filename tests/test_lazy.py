"""Names of a stub, imported on first use."""

import sys

import pytest

from pml_ext import lazy
from pml_ext.errors import MissingExtraError

SOURCE = """
from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "the names of lazy_door")
"""
STUB = "from .inner import VALUE\nfrom . import inner\nfrom .broken import Late\n"


@pytest.fixture(params=["lazy_door", "lazy_door.door"])
def door(install_plugin, request):
    """A package, or a module in it, whose names are imported on first use."""
    package = install_plugin("lazy_door", "")
    file = package / ("__init__.py" if request.param == "lazy_door" else "door.py")
    file.write_text(SOURCE)
    file.with_suffix(".pyi").write_text(STUB)
    (package / "inner.py").write_text("VALUE = object()\n")
    (package / "broken.py").write_text("import no_such_package\n")
    __import__(request.param)
    yield sys.modules[request.param]
    for name in ("lazy_door.door", "lazy_door.inner", "lazy_door.broken"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_on_first_use(door):
    assert "lazy_door.inner" not in sys.modules
    value = door.VALUE
    assert value is sys.modules["lazy_door.inner"].VALUE
    assert vars(door)["VALUE"] is value
    assert door.inner is sys.modules["lazy_door.inner"]
    assert door is sys.modules["lazy_door"] or "VALUE" not in vars(sys.modules["lazy_door"])


def test_an_unknown_name_has_the_nearest(door):
    with pytest.raises(AttributeError, match=f"module '{door.__name__}': no name 'VALEU'; nearest: VALUE"):
        door.VALEU  # noqa: B018


def test_a_missing_package_is_named_with_its_extra(door):
    text = "the names of lazy_door needs the package 'no_such_package', .* \"pml-ext.train.\""
    with pytest.raises(MissingExtraError, match=text):
        door.Late  # noqa: B018
    with pytest.raises(MissingExtraError, match="a page needs the package 'no_such_package'"):
        lazy.require_packages(["json", "no_such_package"], "browse", "a page")
    lazy.require_packages(["json"], "browse", "a page")

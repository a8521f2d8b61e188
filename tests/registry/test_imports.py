"""Imports of what plugins name as text: what they print, and how an error names plugin, hook and line."""

import sys

import pytest

from pml_ext.errors import PluginError
from pml_ext.registry import imports


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module ``theirs``, which is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    yield (tmp_path / "theirs.py").write_text
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize(
    ("line", "error"), [("raise SystemExit(3)", "SystemExit: 3"), ("1 / 0", "ZeroDivisionError: .*")]
)
def test_an_import_that_fails_names_plugin_hook_and_line(tmp_path, module, line, error):
    module(f"\n{line}\n")
    text = (
        rf"the loss 'x' of the plugin 'mine' cannot be imported: {error}, in {tmp_path.name}/theirs.py:2; "
        r"a_hook names 'theirs:X' .*_BLOCK=mine"
    )
    with pytest.raises(PluginError, match=text):
        imports.import_name("theirs:X", "the loss 'x'", "mine", "a_hook")


def test_what_an_import_prints_goes_to_stderr(module, capsys):
    module("print('hello')\nX = 5\n")
    assert imports.import_name("theirs:X", "the loss 'x'", "mine", "a_hook") == 5
    assert capsys.readouterr() == ("", "hello\n")


def test_an_import_may_change_the_process(module, monkeypatch):
    monkeypatch.setenv("OF_A_LIBRARY", "before")
    module("import os\nos.environ['OF_A_LIBRARY'] = 'after'\nX = os.environ['OF_A_LIBRARY']\n")
    assert imports.import_name("theirs:X", "the loss 'x'", "mine", "a_hook") == "after"


def test_the_last_line_of_a_package_that_led_to_an_error(module):
    module("def outer():\n    return inner()\n\ndef inner():\n    return len(5)\n")
    outer = imports.import_name("theirs:outer", "the loss 'x'", "mine", "a_hook")
    with pytest.raises(TypeError) as caught:
        outer()
    assert imports.place_in("theirs", caught.value).endswith("/theirs.py:5")
    assert imports.place_in("nobody", caught.value) == ""
    assert imports.reason_of(caught.value, "nobody") == "TypeError: object of type 'int' has no len()"


def test_the_top_package_of_a_path():
    assert [imports.package_of(path) for path in ("a.b:C", "a:C", "a.b", "a")] == ["a"] * 4

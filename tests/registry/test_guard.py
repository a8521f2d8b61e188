"""Guards around plugins: settings of the process are put back, shared imports are timed, imports are named."""

import builtins
import json
import logging
import multiprocessing
import os
import sys
import warnings

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from pml_ext.errors import PluginError, PluginWarning
from pml_ext.registry import guard

CHANGES = {
    "warnings.filters": lambda: warnings.simplefilter("error"),
    "warnings.showwarning": lambda: setattr(warnings, "showwarning", print),
    "sys.stderr": lambda: setattr(sys, "stderr", None),
    "built-in functions": lambda: setattr(builtins, "print", len),
    "sys.path": lambda: sys.path.insert(0, "/shadows"),
    "sys.modules": lambda: sys.modules.update(json_of_nobody=None),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "the working folder": lambda: os.chdir("/"),
    "os.environ": lambda: os.environ.update(CUDA_VISIBLE_DEVICES="7"),
    "the level of logging": lambda: logging.root.setLevel(3),
    "logging.disable": lambda: logging.disable(logging.CRITICAL),
    "the start method of multiprocessing": lambda: multiprocessing.set_start_method("spawn", force=True),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "torch.is_grad_enabled()": lambda: torch.set_grad_enabled(False),
    "torch.is_anomaly_enabled()": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.is_autocast_enabled()": lambda: torch.set_autocast_enabled("cpu", True),
    "matplotlib.rcParams": lambda: matplotlib.rcParams.update({"text.usetex": True}),
    "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": lambda: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    "PIL.Image.MAX_IMAGE_PIXELS": lambda: setattr(Image, "MAX_IMAGE_PIXELS", 10),
    "numpy.geterr()": lambda: np.seterr(all="raise"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_put_back_and_reported(name, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # a new folder stays, at the end
    changed = []
    with guard.process_unchanged(changed.extend):
        CHANGES[name]()
    assert changed == [name]
    again = []
    with guard.process_unchanged(again.extend):
        assert torch.ones(1).device.type == "cpu"
    assert again == []
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "7"


def test_a_folder_at_the_end_of_the_path_may_stay(monkeypatch):
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    changed = []
    with guard.process_unchanged(changed.extend):
        sys.path.append("/mine")
    assert (changed, sys.path) == ([], [*before, "/mine"])
    with guard.process_unchanged(changed.extend):
        sys.path[:] = ["/shadows"]
    assert changed == ["sys.path"]
    assert sys.path == [*before, "/mine", "/shadows"]


def test_a_hidden_module_comes_back(monkeypatch):
    monkeypatch.setitem(sys.modules, "wave", None)  # hidden before
    changed = []
    with guard.process_unchanged(changed.extend):
        sys.modules["json"] = None
        sys.modules["of_nobody"] = None
    assert changed == ["sys.modules"]
    assert (sys.modules["json"] is json, "of_nobody" in sys.modules, sys.modules["wave"]) == (True, False, None)


def test_a_new_built_in_function_may_stay(monkeypatch):
    changed = []
    with guard.process_unchanged(changed.extend):
        monkeypatch.setattr(builtins, "_of_gettext", len, raising=False)
    assert changed == []


def test_what_is_put_back_after_an_error():
    def careless():
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), guard.process_unchanged(lambda changed: None):
        careless()
    assert torch.get_default_dtype() == torch.float32


def test_a_filter_of_one_warning_may_stay():
    changed = []
    with warnings.catch_warnings(), guard.process_unchanged(changed.extend):
        warnings.filterwarnings("error", message="a library's own")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
    assert changed == []


def test_a_strict_filter_that_is_removed_comes_back():
    changed = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with guard.process_unchanged(changed.extend):
            warnings.resetwarnings()
        assert changed == ["warnings.filters"]
        with pytest.raises(UserWarning, match="strict"):
            warnings.warn("strict", UserWarning, stacklevel=1)


def test_deterministic_algorithms_that_warn_still_warn():
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with guard.process_unchanged(lambda changed: None):
            torch.use_deterministic_algorithms(False)
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.set_deterministic_debug_mode(before)


def test_an_import_that_fails_names_plugin_and_hook(tmp_path, monkeypatch):
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = r"the loss 'x' of the plugin 'mine' cannot be imported: SystemExit: 3; a_hook names 'leaves:X' .*_BLOCK=mine"
    with pytest.raises(PluginError, match=text):
        guard.import_name("leaves:X", "the loss 'x'", "mine", "a_hook")


def test_an_import_that_changes_the_process_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "strict.py").write_text("import warnings\nprint('hello')\nwarnings.simplefilter('error')\nX = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(PluginWarning, match="the loss 'x' of the plugin 'mine' changes warnings.filters"):
        assert guard.import_name("strict:X", "the loss 'x'", "mine", "a_hook") == 5
    assert capsys.readouterr() == ("", "hello\n")
    del sys.modules["strict"]

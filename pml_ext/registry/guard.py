"""Guards around the code of plugins: settings of the process that it changes are put back."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import multiprocessing
import operator
import os
import pkgutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import PluginError, PluginWarning, PmlExtError, StoppedError, one_line

# Packages that pml_ext imports itself, later than plugins: the first plugin that imports one pays for it.
_SHARED = ("torch", "pytorch_metric_learning", "numpy", "scipy", "sklearn", "torchvision")
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# Environment variables that steer other libraries; other new ones, which a plugin's own library may read, may stay.
_STEERING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONWARNINGS")


class Setting(NamedTuple):
    """A setting of the process: how it is read, how a value is put back, and which change may stay."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    may_stay: Callable[[Any, Any], bool] = operator.eq  # of the values before and after


def _strict_filters() -> list[Any]:
    """Return the filters that turn warnings of any module and any text into errors."""
    strict = []
    for entry in warnings.filters:
        action, message, _, module, _ = entry
        if action == "error" and message is None and module is None:
            strict.append(entry)
    return strict


def _write_strict_filters(wanted: Sequence[Any]) -> None:
    """Remove strict filters that are not wanted, and put wanted ones that are gone back in front."""
    present = _strict_filters()
    gone = [entry for entry in wanted if entry not in present]
    new = [entry for entry in present if entry not in wanted]
    kept = [entry for entry in warnings.filters if entry not in new]
    warnings.filters[:] = [*gone, *kept]  # type: ignore[index]


def _steering_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _STEERING or name.startswith("PML_EXT_")}


def _write_steering_variables(wanted: Mapping[str, str]) -> None:
    for name in _steering_variables().keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _builtins() -> dict[str, Any]:
    """Return the functions that every module uses without an import, such as ``open`` and ``__import__``."""
    return {name: value for name, value in vars(builtins).items() if name != "_"}  # "_": of the interactive Python


def _has_all(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether all values are as before; new names may be there, such as that of ``gettext.install``."""
    return all(name in after and after[name] is value for name, value in before.items())


def _begins_with(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether entries were only added at the end, where they hide no module of others."""
    return list(after[: len(before)]) == list(before)


def _write_search_path(wanted: Sequence[str]) -> None:
    """Put sys.path back; new folders are searched last."""
    new = [folder for folder in sys.path if folder not in wanted]
    sys.path[:] = [*wanted, *new]


def _hidden_modules() -> set[str]:
    """Return the modules whose import is an error, since ``sys.modules`` has None for them."""
    return {name for name, module in list(sys.modules.items()) if module is None}


def _hides_none(before: Mapping[str, Any], _: Mapping[str, Any]) -> bool:
    """Return whether the modules that cannot be imported could not be imported before either."""
    return all(name in before and before[name] is None for name in _hidden_modules())


def _write_modules(wanted: Mapping[str, Any]) -> None:
    """Put back what None hides; new modules may stay."""
    for name in _hidden_modules():
        if name in wanted:
            sys.modules[name] = wanted[name]
        else:
            del sys.modules[name]


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted since
        return None


def _write_working_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _signal_handlers() -> dict[str, Any]:
    return {name: signal.getsignal(getattr(signal, name)) for name in _SIGNALS if hasattr(signal, name)}


def _write_signal_handlers(wanted: Mapping[str, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():  # signal() works in the main thread alone
        return
    for name, handler in wanted.items():
        if handler is not None:  # None: a handler that was not set from Python
            signal.signal(getattr(signal, name), handler)


OF_PYTHON: dict[str, Setting] = {
    "warnings.filters": Setting(_strict_filters, _write_strict_filters),
    "warnings.showwarning": Setting(
        lambda: warnings.showwarning, lambda function: setattr(warnings, "showwarning", function)
    ),
    "sys.stderr": Setting(lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
    "sys.excepthook": Setting(lambda: sys.excepthook, lambda function: setattr(sys, "excepthook", function)),
    "built-in functions": Setting(_builtins, lambda wanted: vars(builtins).update(wanted), _has_all),
    "sys.path": Setting(lambda: list(sys.path), _write_search_path, _begins_with),
    "sys.modules": Setting(lambda: dict(sys.modules), _write_modules, _hides_none),
    "the recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the working folder": Setting(_working_folder, _write_working_folder),
    "os.environ": Setting(_steering_variables, _write_steering_variables),
    "the level of logging": Setting(lambda: logging.root.level, logging.root.setLevel),
    "logging.disable": Setting(lambda: logging.root.manager.disable, logging.disable),
    "signal handlers": Setting(_signal_handlers, _write_signal_handlers),
    "the start method of multiprocessing": Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
}


def _of_torch() -> dict[str, tuple[Setting, Any]]:
    """Return torch's settings, each with the value that it has after the import of torch."""
    import torch

    return {
        "the default dtype": (Setting(torch.get_default_dtype, torch.set_default_dtype), torch.float32),
        "the default device": (Setting(torch.get_default_device, _set_default_device), torch.device("cpu")),
        "torch.is_grad_enabled()": (Setting(torch.is_grad_enabled, torch.set_grad_enabled), True),
        "torch.is_anomaly_enabled()": (
            Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
            False,
        ),
        "torch.is_autocast_enabled()": (
            Setting(lambda: torch.is_autocast_enabled("cpu"), lambda flag: torch.set_autocast_enabled("cpu", flag)),
            False,
        ),
        # A number that tells errors from warnings, which are_deterministic_algorithms_enabled does not.
        "deterministic algorithms": (
            Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
            0,
        ),
        "the precision of matrix products": (
            Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            "highest",
        ),
    }


def _set_default_device(device: Any) -> None:
    """Set torch's default device; the CPU is none at all, which costs no operator anything."""
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)


def _rc_params() -> dict[str, Any]:
    """Return matplotlib's settings without its choice of a backend, which figures in files do not use."""
    import matplotlib

    names = [name for name in dict.keys(matplotlib.rcParams) if not name.startswith("backend")]
    return {name: dict.__getitem__(matplotlib.rcParams, name) for name in names}  # unchecked: warns of none


def _of_matplotlib() -> tuple[Setting, Any]:
    import matplotlib

    default = {name: value for name, value in dict.items(matplotlib.rcParamsOrig) if not name.startswith("backend")}
    return Setting(_rc_params, lambda wanted: dict.update(matplotlib.rcParams, wanted)), default


def _of_pillow() -> dict[str, tuple[Setting, Any]]:
    """Return the settings of Pillow that change which images can be read, with their defaults."""
    from PIL import Image, ImageFile

    truncated = Setting(
        lambda: ImageFile.LOAD_TRUNCATED_IMAGES, lambda flag: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", flag)
    )
    largest = Setting(lambda: Image.MAX_IMAGE_PIXELS, lambda most: setattr(Image, "MAX_IMAGE_PIXELS", most))
    return {
        "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": (truncated, False),
        "PIL.Image.MAX_IMAGE_PIXELS": (largest, 1024**3 // 4 // 3),
    }


def _of_numpy() -> tuple[Setting, Any]:
    import numpy as np

    default = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
    return Setting(np.geterr, lambda wanted: np.seterr(**wanted)), default


def _loaded(module: str) -> bool:
    """Return whether a module is imported completely."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _libraries() -> dict[str, tuple[Setting, Any]]:
    """Return the settings of libraries with their defaults, of what is imported already."""
    settings: dict[str, tuple[Setting, Any]] = {}
    if _loaded("torch"):
        settings |= _of_torch()
    if _loaded("numpy"):
        settings["numpy.geterr()"] = _of_numpy()
    if _loaded("matplotlib"):
        settings["matplotlib.rcParams"] = _of_matplotlib()
    if _loaded("PIL.Image") and _loaded("PIL.ImageFile"):
        settings |= _of_pillow()
    return settings


@contextlib.contextmanager
def process_unchanged(report: Callable[[list[str]], None]) -> Iterator[None]:
    """Put settings of the process back after the block, and call ``report`` with the names of those that it changed.

    A library that the block imports first, such as torch, gets its default settings. After an error in the block,
    settings are put back without a report.
    """
    before = {name: setting.read() for name, setting in OF_PYTHON.items()}
    before_in_libraries = {name: setting.read() for name, (setting, _) in _libraries().items()}
    try:
        yield
    finally:
        changed = []
        for name, setting in OF_PYTHON.items():
            if not setting.may_stay(before[name], setting.read()):
                changed.append(name)
                setting.write(before[name])
        for name, (setting, default) in _libraries().items():
            wanted = before_in_libraries.get(name, default)
            if setting.read() != wanted:
                changed.append(name)
                setting.write(wanted)
    if changed:
        report(changed)


def shared_imports() -> list[str]:
    """Return the packages that pml_ext imports itself, as far as they are imported already."""
    return [name for name in _SHARED if name in sys.modules]


def import_name(source: str, owner: str, plugin: str, hook: str) -> Any:
    """Import ``"package.module:name"`` of a plugin.

    ``owner`` is what the name is of, such as ``"the loss 'mine'"``. PluginError if the import fails, with the plugin
    and the hook that named it.
    """
    try:
        if source.partition(":")[0] in sys.modules:  # nothing is executed
            return pkgutil.resolve_name(source)
        report = functools.partial(_warn_of_changes, f"{owner} of the plugin {plugin!r}")
        with process_unchanged(report), contextlib.redirect_stdout(sys.stderr):
            return pkgutil.resolve_name(source)
    except (PmlExtError, PluginWarning, KeyboardInterrupt, StoppedError):
        raise
    except BaseException as error:  # a plugin's module may raise anything, SystemExit too
        problem = f"{owner} of the plugin {plugin!r} cannot be imported: {one_line(error)}"
        raise PluginError(
            f"{problem}; {hook} names {source!r} (PML_EXT_BLOCK={plugin} leaves the plugin out)"
        ) from error


def _warn_of_changes(owner: str, changed: list[str]) -> None:
    text = f"the import of {owner} changes {', '.join(changed)} for the whole process; it was put back"
    warnings.warn(text, PluginWarning, stacklevel=5)

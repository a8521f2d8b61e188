"""The command line ``pml-ext``: one function per command; the logic is in other modules.

Results go to stdout, progress and warnings to stderr. Exit code 0: done; 1: a finding or a failure; 2: wrong use.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence

from pml_ext import registry
from pml_ext.errors import (
    ConfigError,
    MissingExtraError,
    PluginError,
    PmlExtError,
    StoppedError,
    needs_extra,
    printable,
    remedy_of,
    shortened,
)

from .output import Messages


def main() -> None:
    """Run the command line: the entry point of ``pml-ext`` and ``python -m pml_ext``."""
    if sys.stderr is None:  # closed by the calling process
        _main()
        return
    with contextlib.redirect_stderr(Messages(sys.stderr)):
        _main()


def _main() -> None:
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:  # accepted before and after the command's name
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    else:
        warnings.showwarning = _show_warning
    try:
        with needs_extra("train", "the command line"):
            import typer  # noqa: F401
        from .app import app_for

        if "" in arguments:  # pathlib reads "" as the current folder
            number = arguments.index("") + 1
            raise ConfigError(
                f"argument {number} is empty, perhaps from an unset variable; leave it out, or give a value"
            )
        _check_data_without_recipe(arguments)
        with _exits_of_plugins_named(arguments):
            app_for(arguments)(arguments, prog_name="pml-ext")
    except KeyboardInterrupt:  # while modules are imported; typer handles interrupts during a command
        if debug:
            raise
        print(f"pml-ext{_rank()}: stopped by SIGINT before the command began", file=sys.stderr)
        sys.exit(130)
    except (Exception, StoppedError) as error:
        if debug and not isinstance(error, MissingExtraError):
            raise
        print(f"pml-ext{_rank()}: {_text(error)}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))


def _check_data_without_recipe(arguments: Sequence[str]) -> None:
    """Refuse ``train --images DATA``, and name ``pml-ext fit`` instead."""
    if "train" not in arguments:
        return
    for place, argument in enumerate(arguments):
        for option in ("--images", "--vectors"):
            if argument != option and not argument.startswith(f"{option}="):
                continue
            data = argument.removeprefix(option).removeprefix("=")
            following = [*arguments[place + 1 :], "DATA"]
            raise ConfigError(
                f"{option}: train needs a recipe; to have one chosen for your data, type: pml-ext fit "
                f"{shlex.quote(data or following[0])}"
            )


@contextlib.contextmanager
def _exits_of_plugins_named(arguments: Sequence[str]) -> Iterator[None]:
    """Raise a PluginError for a ``sys.exit()`` in a plugin, except in the plugin's own command."""
    try:
        yield
    except SystemExit as error:  # by typer, too
        origin = registry.origin_of(error)
        if origin is None or origin.plugin == _plugin_of_command(arguments):
            raise
        raise PluginError(
            f"{origin.place} calls sys.exit({error.code!r}), which ends the command; it should raise an "
            f"exception (PML_EXT_BLOCK={origin.plugin} leaves the plugin out)"
        ) from error


def _plugin_of_command(arguments: Sequence[str]) -> str:
    """Return the plugin of the called command, or an empty string."""
    commands = registry.commands()
    for argument in arguments:
        if argument in commands:
            plugin, _ = commands[argument]
            return plugin
    return ""


def _rank() -> str:
    """Return `` (rank N)``, or an empty string for a single process."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ""
    rank = os.environ.get("RANK", "?")
    return f" (rank {rank})"


def _text(error: BaseException) -> str:
    if not isinstance(error, (PmlExtError, StoppedError)):
        where = ""
        origin = registry.origin_of(error)
        if origin is not None:
            where = f", in {origin.place}"
        reason = shortened(f"{type(error).__name__}: {error}", 460)
        if isinstance(error, OSError) and error.filename:
            reason = f"{shortened(error.filename, 200)}: {error.strerror}{remedy_of(error)}"
        return f"{reason}{where} (pml-ext --debug ... shows where)"
    text = str(error)
    if "Original Traceback" in text:  # torch wraps errors of a data loader's workers
        text = text.strip().splitlines()[-1].partition(": ")[2]
    if isinstance(error, StoppedError):  # has the command that resumes the run, which must not be cut
        return printable(text)
    return shortened(text)


def _show_warning(message: object, category: type[Warning], filename: str, *_: object, **__: object) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    if issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning):
        print(f"pml-ext: warning: {shortened(message)}", file=sys.stderr)

"""The command line ``pml-ext``: one module a command, and no logic of its own.

Results go to stdout, progress and warnings to stderr. Exit code 0: done; 1: a finding or a failure; 2: wrong use.
"""

from __future__ import annotations

import os
import sys
import warnings

from ..errors import (
    ConfigError,
    MissingExtraError,
    PluginWarning,
    PmlExtError,
    StoppedError,
    needs_extra,
    printable,
    shortened,
)


def main() -> None:
    """The entry point of ``pml-ext`` and ``python -m pml_ext``."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        with needs_extra("train,cpu", "the command line"):
            import typer  # noqa: F401
        from .app import app
    except MissingExtraError as error:
        _leave(error)
    if debug:  # understood before and after the command's name
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    else:
        warnings.showwarning = _show_warning
    try:
        if "" in arguments:  # which pathlib takes for the folder at hand
            raise ConfigError(
                f"argument {arguments.index('') + 1} is empty, as that of a variable that is not set; "
                "leave it out, or say what is meant"
            )
        app(arguments, prog_name="pml-ext")
    except (PmlExtError, StoppedError) as error:
        if debug:
            raise
        _leave(error)
    except Exception as error:
        if debug:
            raise
        text = shortened(f"{type(error).__name__}: {error}", 560)
        print(f"{_name()}: {text} (pml-ext --debug ... shows where)", file=sys.stderr)
        sys.exit(1)


def _leave(error: PmlExtError | StoppedError) -> None:
    text = str(error)
    if "Original Traceback" in text:  # torch wraps what a worker process of a data loader raises
        text = text.strip().splitlines()[-1].partition(": ")[2]
    # What to type to go on with a run is never cut.
    print(f"{_name()}: {printable(text) if isinstance(error, StoppedError) else shortened(text)}", file=sys.stderr)
    sys.exit(error.exit_code)


def _name() -> str:
    """How an error begins: with the process that has it, where torchrun started several."""
    return "pml-ext" if os.environ.get("WORLD_SIZE", "1") == "1" else f"pml-ext (rank {os.environ.get('RANK', '?')})"


def _show_warning(message: object, category: type[Warning], filename: str, *_: object, **__: object) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    if issubclass(category, (PluginWarning, UserWarning)) and not issubclass(category, DeprecationWarning):
        print(f"pml-ext: warning: {shortened(message)}", file=sys.stderr)

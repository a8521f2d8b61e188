"""The entry point of the command line, and its errors and warnings."""

import contextlib
import itertools
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
    """Run the command line ``pml-ext``, also as ``python -m pml_ext``."""
    is_closed = sys.stderr is None  # by the calling process
    with contextlib.nullcontext() if is_closed else contextlib.redirect_stderr(Messages(sys.stderr)):
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
            raise ConfigError(
                f"argument {arguments.index('') + 1} is empty, perhaps from an unset variable; leave it out, or give "
                "a value"
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
    for argument, following in itertools.pairwise([*arguments, "DATA"]):
        option, _, data = argument.partition("=")
        if option in ("--images", "--vectors"):
            raise ConfigError(
                f"{option}: train needs a recipe; to have one chosen for your data, type: pml-ext fit "
                f"{shlex.quote(data or following)}"
            )


@contextlib.contextmanager
def _exits_of_plugins_named(arguments: Sequence[str]) -> Iterator[None]:
    """Raise PluginError for a ``sys.exit()`` in a plugin, except in its own command."""
    try:
        yield
    except SystemExit as error:  # by typer, too
        origin = registry.origin_of(error)
        if origin is None or origin.plugin == _plugin_of_command(arguments):
            raise
        raise PluginError(
            f"{origin.place} calls sys.exit({error.code!r}), which ends the command; it should raise an "
            f"exception. To run without this plugin, set PML_EXT_BLOCK={origin.plugin}"
        ) from error


def _plugin_of_command(arguments: Sequence[str]) -> str:
    commands = registry.commands()
    called = next((argument for argument in arguments if argument in commands), None)
    return "" if called is None else commands[called][0]


def _rank() -> str:
    """Return `` (rank N)``, or an empty string for a single process."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ""
    return f" (rank {os.environ.get('RANK', '?')})"


def _text(error: BaseException) -> str:
    if not isinstance(error, (PmlExtError, StoppedError)):
        origin = registry.origin_of(error)
        where = "" if origin is None else f", in {origin.place}"
        reason = shortened(f"{type(error).__name__}: {error}", 460)
        if isinstance(error, OSError) and error.filename:
            reason = f"{shortened(error.filename, 200)}: {error.strerror}{remedy_of(error)}"
        return f"{reason}{where} (pml-ext --debug ... shows where)"
    text = str(error)
    if "Original Traceback" in text:  # torch wraps errors of a data loader's workers
        text = text.strip().splitlines()[-1].partition(": ")[2]
    # a stopped run's message ends with the command that resumes it, which must not be cut
    return printable(text) if isinstance(error, StoppedError) else shortened(text)


def _show_warning(message: object, category: type[Warning], filename: str, *_: object, **__: object) -> None:
    is_for_users = issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning)
    if is_for_users and os.environ.get("RANK", "0") == "0":
        print(f"pml-ext: warning: {shortened(message)}", file=sys.stderr)

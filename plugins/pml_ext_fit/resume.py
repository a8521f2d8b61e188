"""Runs that were started before: their folders, their choices, and how they continue."""

import contextlib
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pml_ext.errors import ConfigError, DataError, StoppedError, one_line
from pml_ext_train.files import DamagedError, read_json, write_json
from pml_ext_train.launch import LOCK, locked
from pml_ext_train.records import CHOICE, RECIPE, TRIALS, tables_of_run
from pml_ext_train.training import listening, stopped as stopped_by

from .candidates import Choice
from .fit_options import FitOptions


def begun_run(folder: Path, name: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The recipe's tables of the run in a folder, with [run]; None without a run or if it is damaged.

    ConfigError if the run has other data than ``name``.
    """
    if not (folder / RECIPE).is_file():
        return None
    try:
        tables = tables_of_run(folder)
    except DataError:
        say(f"{folder / RECIPE} is damaged; it is written again")
        return None
    _check_data(folder, tables.get("data", {}).get("name"), name)
    return tables


def _check_data(folder: Path, found: Any, name: str) -> None:
    if found != name:
        raise ConfigError(f"{folder} holds a run of {found}, not of {name}; resume it with the same")


def keep_choice(folder: Path, chosen: Choice, name: str) -> None:
    """Store the choice, so that a killed run continues without trials."""
    write_json(folder / CHOICE, {"data": name, **asdict(chosen)})


def kept_choice(options: FitOptions, name: str) -> Choice | None:
    """The stored choice of a run that is resumed, or None; ConfigError for other data."""
    if not options.resume or options.out is None or not (options.out / CHOICE).is_file():
        return None
    file = options.out / CHOICE
    try:
        kept = read_json(file)
        chosen = Choice(kept["title"], kept["recipe"], dict(kept["settings"]))
        data = kept["data"]
    except (DamagedError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: not what a command has chosen ({one_line(error)}); delete it, and --resume makes the trials again"
        ) from None
    _check_data(options.out, data, name)
    return chosen


@contextlib.contextmanager
def begun_folder(folder: Path, stopped: Callable[[str], str]) -> Iterator[None]:
    """Create and lock a run's folder before its training, so that ``--resume`` continues after a kill.

    After an error, a folder that was created here is removed. A signal raises StoppedError; ``stopped`` completes its
    text, given the command to go on.
    """
    created = not folder.exists()
    try:
        with listening(), locked(folder):
            yield
    except StoppedError as error:
        again = f"go on with the same command with --out {shlex.quote(str(folder))} --resume"
        raise stopped_by(error.signal, stopped(again)) from None
    except Exception:
        if created:
            with contextlib.suppress(OSError):  # it has files
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
        raise


@contextlib.contextmanager
def folder_of_trials(folder: Path) -> Iterator[Path]:
    """Yield an empty folder inside a run's folder, and remove it afterwards."""
    place = folder / TRIALS
    _remove(place)
    place.mkdir()
    try:
        yield place
    finally:
        _remove(place)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)

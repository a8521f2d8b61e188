"""Runs on somebody's images that were begun before: what they chose, and with which settings they go on."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError, StoppedError, one_line
from ..files import DamagedError, read_json, write_json, writing
from ..recipe import flat, parse_override
from ..recipe.images import OwnImages
from ..training import signals
from ..training.finished import tables_of_run
from ..training.folder import CHOICE, RECIPE
from .candidates import Choice


class BegunRun(NamedTuple):
    """A run that a folder holds, or the first of several."""

    folder: Path
    tables: dict[str, Any]  # of its recipe, with [run]

    @property
    def file(self) -> str:
        """The file of the recipe."""
        return str(self.folder / RECIPE)

    @property
    def recipe(self) -> str:
        """The name of the recipe."""
        return str(self.tables["run"].get("recipe", self.file))

    def settings(self, fitting: Iterable[str]) -> list[str]:
        """Return fitting settings with the run's own values, which are those of the images that it began with."""
        own = flat(self.tables)
        settings = []
        for setting in fitting:
            key = parse_override(setting).key
            if key in own:
                setting = f"{key}={json.dumps(own[key], ensure_ascii=False)}"
            settings.append(setting)
        return settings


def begun_run(folder: Path, images: OwnImages, say: Callable[[str], None]) -> BegunRun | None:
    """Return the run, or the first of several, that a folder has; None without one, or where its recipe is damaged.

    ConfigError for a run of other images.
    """
    for place in (folder, *sorted(folder.glob("seed-*"))):
        if not (place / RECIPE).is_file():
            continue
        try:
            tables = tables_of_run(place)
        except DataError:
            say(f"{place / RECIPE} is damaged; it is written again")
            return None
        _check_images(place, tables.get("data", {}).get("name"), images)
        return BegunRun(place, tables)
    return None


def _check_images(place: Path, name: Any, images: OwnImages) -> None:
    if name != images.name:
        raise ConfigError(f"{place} holds a run of {name}, not of {images.name}; resume it with the same")


def keep_choice(folder: Path, chosen: Choice, images: OwnImages) -> None:
    """Write what was chosen, so that a run that is killed before its recipe is written goes on without trials."""
    write_json(folder / CHOICE, {"data": images.name, **chosen._asdict()})


def kept_choice(folder: Path, images: OwnImages) -> Choice | None:
    """Return the choice of :func:`keep_choice`; None without one; ConfigError for one of other images."""
    file = folder / CHOICE
    if not file.is_file():
        return None
    try:
        kept = read_json(file)
        _check_images(folder, kept["data"], images)
        return Choice(kept["recipe"], [*kept["settings"]], kept["title"])
    except (DamagedError, KeyError, TypeError) as error:
        text = f"{file}: not what a command has chosen ({one_line(error)})"
        raise DataError(f"{text}; delete it, and --resume makes the trials again") from None


@contextlib.contextmanager
def begun_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder of a run for its trials, so that ``--resume`` goes on after a kill.

    An error removes the folder again, if it was created here. A signal ends the trials by a StoppedError, which says
    what to type.
    """
    if folder is None:
        again = "type the same command again"
    else:
        again = f"go on with the same command with --out {shlex.quote(str(folder))} --resume"
    created = folder is not None and not folder.exists()
    if folder is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    try:
        with signals.listening():
            yield
    except StoppedError as error:
        if folder is not None and (folder / CHOICE).is_file():
            where = f"after the choice; {again}"
        else:
            where = f"in the trials, before anything was chosen; {again}, which makes them again"
        raise signals.stopped(error.signal, where) from None
    except Exception:
        if folder is not None and created:
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()
        raise

"""Records of every iteration and epoch."""

import contextlib
import copy
import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pml_ext.errors import ConfigError, MissingExtraError, one_line

from .database import RecordKeeper, delete_rows_after, write_csv_files
from .trackers import Tracker

Rows = Mapping[str, Mapping[str, Any]]  # values by table and column
_SAVE_SECONDS = 30.0  # interval of writes inside an epoch, to monitor the run


class Records:
    """The records of a run, in ``records/`` and in its trackers.

    Values are written at the end of an epoch, or after 30 seconds. Rows after the checkpoint are deleted; DataError if
    they cannot be. A failing tracker is left out with a warning. ``trackers`` are names and factories.
    """

    def __init__(
        self,
        folder: Path,
        iteration: int,
        epoch: int,
        warn: Callable[[str], None] = lambda text: None,
        trackers: Iterable[tuple[str, Callable[[], Tracker]]] = (),
    ) -> None:
        self._folder = folder / "records"
        self._warn = warn
        if (self._folder / "logs.db").exists():
            delete_rows_after(self._folder / "logs.db", iteration, epoch, warn)
        self._rows: list[tuple[int, Rows]] = []
        self._saved = time.monotonic()
        self._trackers: list[tuple[str, Tracker]] = []
        record_keeper: Callable[[], Tracker] = functools.partial(RecordKeeper, self._folder)
        for name, factory in [("records", record_keeper), *trackers]:
            with self._errors_as_warnings(name):
                self._trackers.append((name, factory()))

    def add(self, number: int, rows: Rows) -> None:
        """Record values of an iteration, or epoch."""
        self._rows.append((number, rows))
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the values added so far."""
        flattened = [(number, _flattened(tables)) for number, tables in self._rows]
        self._rows = []
        self._saved = time.monotonic()
        for name, tracker in [*self._trackers]:
            with self._errors_as_warnings(name, tracker):
                for number, values in flattened:
                    tracker.log(dict(values), number)
                if hasattr(tracker, "flush"):
                    tracker.flush()

    def close(self) -> None:
        """Write remaining values, and CSV files."""
        self.save()
        with self._errors_as_warnings("records"):
            write_csv_files(self._folder)

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """End the trackers; a finished run calls :meth:`close` first."""
        if status != "finished":
            self.close()
        for name, tracker in [*self._trackers]:
            with self._errors_as_warnings(name, tracker):
                tracker.finish(status, copy.deepcopy(dict(metrics)), report)

    @contextlib.contextmanager
    def _errors_as_warnings(self, name: str, tracker: Tracker | None = None) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # a tracker's code may raise anything
            if tracker is None and isinstance(error, (ConfigError, MissingExtraError)):
                raise
            if not isinstance(tracker, RecordKeeper):  # which may write again, once a disk has room
                self._trackers = [each for each in self._trackers if each[1] is not tracker]
            self._warn(f"{name}: recording failed ({one_line(error)}); training continues without it")


def _flattened(tables: Rows) -> dict[str, float]:
    """Return values as ``"loss_histories/total_loss"``; booleans become 0 and 1."""
    values: dict[str, float] = {}
    for table, row in tables.items():
        name = re.sub(r"\W", "_", table)  # record-keeper does not quote names
        for column, value in row.items():
            values[f"{name}/{column}"] = int(value) if isinstance(value, int) else float(value)
    return values

"""Runs in processes of their own that are killed at a chosen place, resumed, and compared with one that nobody killed.

A place is a moment: before and after each file is moved, linked or removed, before its bytes are flushed, between two
records, after each iteration, before and after each test. They are counted from the beginning of a run, so that place
number 17 is the same moment in each run with the same settings.
"""

import csv
import json
import os
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..overrides import typed
from .events import scalars

# Autograd looks for devices at the first backward of a process; torch.compile adds one, after which no fork may train.
torch.ones(1, requires_grad=True).sum().backward()

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=3", "model.trunk.width=8")


# Settings of runs that are killed, as typed behind --set.
SELECTION = (*QUICK, "evaluation.validation=0.3", "evaluation.select=map_at_r", "sampler.batch_size=56")
PSEUDO = ("data.labels=clusters", "data.pseudo={clusters=20, batch_size=[30, 60]}")
CLUSTERS = (*QUICK, *PSEUDO, "sampler.m=3", "loss.mining=false", "engine.checkpoint_minutes=1e-9")


class Counter:
    """Counts the places of this process, and ends it at one of them.

    Args:
        at: the number of the place; 0 for none.
        log: a file that gets a line per place.
        how: the signal.
    """

    def __init__(self, at: int = 0, log: Path | None = None, how: int = signal.SIGKILL) -> None:
        self.at = at
        self.how = how
        self.count = 0
        self._log = log.open("a", buffering=1) if log is not None else None

    def __call__(self, place: str) -> None:
        self.count += 1
        if self._log is not None:
            self._log.write(f"{place}\n")
        if self.count == self.at:
            os.kill(os.getpid(), self.how)

    def around(self, owner: Any, name: str, describe: Callable[..., str]) -> None:
        """Counts two places, before and after a function of a module or a class is called in this process."""
        real = getattr(owner, name)
        process = os.getpid()

        def counted(*arguments: Any, **settings: Any) -> Any:
            if os.getpid() != process:  # a data loader's worker
                return real(*arguments, **settings)
            place = describe(*arguments, **settings)
            self(f"before {place}")
            value = real(*arguments, **settings)
            self(f"after {place}")
            return value

        setattr(owner, name, counted)

    def everywhere(self) -> None:
        """Counts the places that this module's text names."""
        from record_keeper import utils
        from record_keeper.db_utils import DBManager
        from torch.utils.tensorboard import SummaryWriter

        from pml_ext_train.records import recorder as records
        from pml_ext_train.results import finish as results
        from pml_ext_train.training import evaluation
        from pml_ext_train.training.run import Run

        for name in ("replace", "link", "unlink"):
            self.around(os, name, lambda *paths, name=name, **_: f"{name} {Path(paths[-1]).name}")
        self.around(os, "fsync", lambda handle: "fsync")
        self.around(DBManager, "write", lambda _, table, *__, **___: f"rows of {table} in the database")
        self.around(utils, "write_dict_of_lists_to_csv", lambda _, path, **__: f"rows in {Path(path).name}")
        self.around(SummaryWriter, "flush", lambda *_: "events")
        self.around(records.Records, "add", lambda _, number, __: f"iteration or epoch {number}")
        for name in ("_retrieval", "_clustering"):
            self.around(evaluation, name, lambda *_, **__: "an evaluation")
        self.around(results, "write_run_report", lambda *_, **__: "the report")
        self.around(Run, "call_parts", lambda _, method: method)


def execute(
    settings: Sequence[str],
    out: Path,
    at: int = 0,
    resume: bool = False,
    log: Path | None = None,
    how: int = signal.SIGKILL,
) -> int:
    """Train with settings of ``cbml/digits`` in a process of its own, forked from this one.

    Args:
        settings: as typed behind ``--set``.
        out: the folder.
        at: the place at which the process gets a signal.
        resume: whether it goes on.
        log: a file that gets a line per place.
        how: the signal.

    Returns:
        0, or how the process has ended: minus the signal's number, or its exit status.
    """
    from pml_ext_train.launch.launch import train

    def work() -> None:
        train("cbml/digits", out, device="cpu", overrides=typed(settings), resume=resume)

    if resume:
        time.sleep(1)  # TensorBoard reads files of events by the second that they began in
    return in_a_fork(work, at, log, how)


def in_a_fork(work: Callable[[], None], at: int = 0, log: Path | None = None, how: int = signal.SIGKILL) -> int:
    """Work in a process forked from this one, without drawings in a report; return as :func:`execute`."""
    child = os.fork()
    if child == 0:
        _work(work, Counter(at, log, how))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _work(work: Callable[[], None], counter: Counter) -> None:
    """In the forked process: the work, and its end."""
    from pml_ext.errors import PmlExtError, StoppedError
    from pml_ext_train.results import finish as results

    status = 1
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("RANK", "0")
        results.write_run_report = lambda view, *_: (view.folder / "report.html").write_text("none")
        counter.everywhere()
        work()
        status = 0
    except SystemExit as ended:  # of a command
        status = int(ended.code or 0)
    except (PmlExtError, StoppedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# What two folders must have in common


def _unequal(one: Any, other: Any, place: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return next((text for key in one if (text := _unequal(one[key], other[key], f"{place}.{key}"))), "")
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((text for index, pair in pairs if (text := _unequal(*pair, f"{place}[{index}]"))), "")
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
        return "" if same else f"{place} differs"
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return "" if np.array_equal(one, other) else f"{place} differs"
    return "" if one == other else f"{place}: {one!r} became {other!r}"[:300]


def _metrics(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_bytes())
    return {key: values[key] for key in sorted(values) if key != "seconds"}


def _state(path: Path) -> dict[str, Any]:
    """A checkpoint without times."""
    from pml_ext_train.training import checkpoint

    return {key: value for key, value in checkpoint.load(path).items() if not key.endswith("_seconds")}


def _tables(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        names = [name for (name,) in found if name != "sqlite_sequence"]
        return {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def _shown(path: Path) -> list[dict[str, Any]]:
    """What TensorBoard shows: values after the checkpoint of a resumed run are purged."""
    return [{tag: sorted({*points}) for tag, points in scalars(folder).items()} for folder in (path.parent, path)]


RECORDS = {"logs.db": _tables, "*.csv": _rows, "tensorboard/epochs": _shown}
READERS: dict[str, Callable[[Path], Any]] = {"metrics.json": _metrics, "*.pt": _state, **RECORDS}


def names_in(folder: Path) -> set[str]:
    """The files of a folder; TensorBoard's files have numbers in their names."""
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    return {f"{path.parent}/events" if path.name.startswith("events.out.tfevents") else str(path) for path in paths}


def difference(one: Path, other: Path, readers: Mapping[str, Callable[[Path], Any]] = READERS) -> str:
    """What differs between two folders of the same runs, or an empty string.

    Args:
        one: of the run that nobody killed.
        other: of the one that was resumed.
        readers: of files by their pattern; by default of all, whose names are compared too.
    """
    if readers is READERS and names_in(one) != names_in(other):
        return f"files: {sorted(names_in(one) ^ names_in(other))}"
    for pattern, read in readers.items():
        for path in sorted(one.rglob(pattern)):
            if text := _unequal(read(path), read(other / path.relative_to(one))):
                return f"{path.name}: {text}"
    return ""


def whole_run(settings: Sequence[str], place: Path) -> tuple[Path, list[str]]:
    """The folder of a run that nobody killed, and its places."""
    log = place / "places.txt"
    assert execute(settings, place / "whole", log=log) == 0
    return place / "whole", log.read_text().splitlines()

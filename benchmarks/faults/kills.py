"""Runs in processes of their own that are killed at a chosen place, resumed, and compared with one that nobody killed.

A place is a moment: before and after each file is moved, linked or removed, before its bytes are flushed, between two
records, after each iteration, before and after each test. They are counted from the beginning of a run, so that place
number 17 is the same moment in each run of a scenario.

``python -m benchmarks.faults.kills --kills 200`` spreads kills over all scenarios and prints what differs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import json
import os
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults.events import scalars

# Autograd looks for devices at the first backward of a process; torch.compile adds one, after which no fork may train.
torch.ones(1, requires_grad=True).sum().backward()

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=3", "model.trunk.width=8")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A run, or several, that is killed.

    Args:
        recipe: its name.
        overrides: as typed behind ``--set``.
        processes: how many train together.
        seeds: how many runs.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    processes: int = 1
    seeds: int = 1


SCENARIOS = {
    "cbml": Scenario("cbml/digits", QUICK),
    "pddm": Scenario(
        "pddm/digits",
        (*QUICK, "sampler.m=3", "sampler.batch_size=30", 'stages=[{epochs=1, loss={name="pml/triplet-margin"}}]'),
    ),
    "density": Scenario("density/digits", QUICK),
    "memory": Scenario("cbml/digits", (*QUICK, "loss.memory.size=200", "loss.memory.start_epoch=2")),
    "proxies": Scenario("pml/proxy-anchor/digits", QUICK),
    "pool": Scenario(
        "triplets/digits",
        (*QUICK, "sampler={name='hard-negative-pool', batch_size=30, refresh=1}", "sampler.iterations=3"),
    ),
    "clusters": Scenario(
        "cbml/digits",
        (
            *QUICK,
            "data.labels=clusters",
            "data.pseudo={clusters=20, batch_size=[30, 60]}",
            "sampler.m=3",
            "loss.mining=false",
        ),
    ),
    "selection": Scenario(
        "cbml/digits",
        (*QUICK, "evaluation.validation=0.3", "evaluation.select=map_at_r", "sampler.batch_size=56"),
    ),
    "workers": Scenario("cbml/digits", (*QUICK, "data.workers=1", "data.augment.shift=1")),
    "minutes": Scenario("cbml/digits", (*QUICK, "engine.checkpoint_minutes=1e-9")),  # after each iteration
    "sweep": Scenario("cbml/digits", QUICK, seeds=2),
    "two processes": Scenario("cbml/digits", QUICK, processes=2),
}


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

        from pml_ext.training import evaluation, records, results
        from pml_ext.training.run import Run

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
    scenario: Scenario,
    out: Path,
    at: int = 0,
    resume: bool = False,
    log: Path | None = None,
    how: int = signal.SIGKILL,
    report: bool = False,
    rank: int = 0,
) -> int:
    """Does a scenario's runs in processes of their own, forked from this one.

    Args:
        scenario: what to do.
        out: the folder.
        at: the place at which one of the processes gets a signal.
        resume: whether it goes on.
        log: a file that gets a line per place.
        how: the signal.
        report: whether the reports are drawn as always; without, they are an empty file.
        rank: the process that gets the signal.

    Returns:
        0, or how the process that was to be killed has ended: minus the signal's number, or its exit status.
    """
    if resume:
        time.sleep(1)  # TensorBoard reads files of events by the second that they began in
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for number in range(scenario.processes):
        child = os.fork()
        if child == 0:
            if scenario.processes > 1:
                os.environ |= {
                    "RANK": str(number),
                    "WORLD_SIZE": str(scenario.processes),
                    "MASTER_PORT": str(port),
                    "MASTER_ADDR": "localhost",
                    "LOCAL_RANK": str(number),
                }
            mine = number == rank
            _work(scenario, out, at if mine else 0, resume, log if mine else None, how, report)
        children.append(child)
    ended = os.waitstatus_to_exitcode(os.waitpid(children[rank], 0)[1])
    for number, child in enumerate(children):
        if number != rank:
            if ended != 0:  # as torchrun does
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return ended


def _work(scenario: Scenario, out: Path, at: int, resume: bool, log: Path | None, how: int, report: bool) -> None:
    """In a forked process: the runs, and its end."""
    from pml_ext.errors import PmlExtError, StoppedError
    from pml_ext.recipe import parse_override
    from pml_ext.training import results
    from pml_ext.training.launch import train

    status = 1
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("RANK", "0")
        if not report:
            results.write_run_report = lambda view, *_: (view.folder / "report.html").write_text("none")
        Counter(at, log, how).everywhere()
        overrides = map(parse_override, scenario.overrides)
        train(scenario.recipe, out, seeds=scenario.seeds, device="cpu", overrides=overrides, resume=resume)
        status = 0
    except (PmlExtError, StoppedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# What two folders must have in common


def difference(one: Path, other: Path) -> str:
    """What differs between two folders of the same runs, or is left over in the second; "" if nothing does.

    Args:
        one: of the run that nobody killed.
        other: of the one that was resumed.
    """
    for check in (_files, _metrics, _weights, _databases, _csv_files, _events):
        if text := check(one, other):
            return text
    return ""


def _files(one: Path, other: Path) -> str:
    names = [{_without_numbers(path.relative_to(folder)) for path in folder.rglob("*")} for folder in (one, other)]
    return f"files: {sorted(names[0] ^ names[1])}" if names[0] != names[1] else ""


def _without_numbers(path: Path) -> str:
    return f"{path.parent}/events" if path.name.startswith("events.out.tfevents") else str(path)


def _metrics(one: Path, other: Path) -> str:
    for path in sorted(one.rglob("metrics.json")):
        values = [json.loads(each.read_bytes()) for each in (path, other / path.relative_to(one))]
        for value in values:
            del value["seconds"]
        for key in values[0]:
            if values[0][key] != values[1].get(key):
                return f"{path.name}: {key} {values[0][key]} became {values[1].get(key)}"
    return ""


def _weights(one: Path, other: Path) -> str:
    from pml_ext.training import checkpoint

    for path in sorted(one.rglob("*.pt")):
        states = [checkpoint.load(each) for each in (path, other / path.relative_to(one))]
        for state in states:
            for key in [key for key in state if key.endswith("_seconds")]:
                state.pop(key, None)
        if text := _unequal(*states):
            return f"{path.name}: {text}"
    return ""


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


def _databases(one: Path, other: Path) -> str:
    for path in sorted(one.rglob("logs.db")):
        tables = []
        for each in (path, other / path.relative_to(one)):
            with closing(sqlite3.connect(each)) as connection:
                found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
                names = [name for (name,) in found if name != "sqlite_sequence"]
                tables.append({name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in names})
        if text := _unequal(*tables):
            return f"{path.name}: {text}"
    return ""


def _csv_files(one: Path, other: Path) -> str:
    for path in sorted(one.rglob("*.csv")):
        rows = []
        for each in (path, other / path.relative_to(one)):
            with each.open(newline="") as file:
                rows.append(list(csv.reader(file)))
        if text := _unequal(*rows):
            return f"CSV {path.name}: {text}"
    return ""


def _events(one: Path, other: Path) -> str:
    """What TensorBoard shows: values after the checkpoint of a run that went on are purged."""
    for folder in sorted(path.parent for path in one.rglob("tensorboard/epochs")):
        for name in (".", "epochs"):
            shown = []
            for each in (folder, other / folder.relative_to(one)):
                shown.append({tag: sorted({*points}) for tag, points in scalars(each / name).items()})
            if text := _unequal(*shown):
                return f"events: {text}"
    return ""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for runs, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        yield Path(place)


@dataclasses.dataclass
class Whole:
    """A scenario's run that nobody killed.

    Args:
        folder: of the run.
        places: of it, one text each.
    """

    folder: Path
    places: list[str]

    @classmethod
    def of(cls, scenario: Scenario, place: Path, report: bool = False) -> Whole:
        """Does the run."""
        log = place / "places.txt"
        assert execute(scenario, place / "whole", log=log, report=report) == 0
        return cls(place / "whole", log.read_text().splitlines())


def kill_and_resume(scenario: Scenario, whole: Whole, out: Path, places: Sequence[int], report: bool = False) -> str:
    """What differs after a run was killed once or more, and resumed; "" if nothing does.

    Args:
        scenario: the run.
        whole: what nobody killed.
        out: a folder that is not there.
        places: at which it is killed: the first time, and each time that it was resumed.
        report: as of :func:`execute`.
    """
    for at in places:
        ended = execute(scenario, out, at, resume=out.exists(), report=report)
        if ended not in (0, -signal.SIGKILL):
            return f"it ended with {ended}, not killed"
    if (ended := execute(scenario, out, resume=out.exists(), report=report)) != 0:
        return f"the resumed run ended with {ended}"
    return difference(whole.folder, out)


def main() -> int:
    """The sweep."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=200, help="of all scenarios together")
    options.add_argument("--only", choices=[*SCENARIOS], help="one scenario")
    options.add_argument("--twice", type=int, default=5, help="each n-th run is killed again when it was resumed")
    options.add_argument("--report", action="store_true", help="draw the reports as well, which takes most of the time")
    given = options.parse_args()
    import pml_ext.training  # noqa: F401  # once, for all forked processes

    chosen = {name: scenario for name, scenario in SCENARIOS.items() if given.only in (None, name)}
    each = -(-given.kills // len(chosen))
    failures = 0
    kills = 0
    started = time.monotonic()
    for name, scenario in chosen.items():
        with scratch() as place:
            whole = Whole.of(scenario, place, given.report)
            last = len(whole.places)
            for number in range(each):
                at = 1 + number * (last - 1) // max(1, each - 1)
                places = [at, 1 + at // 2] if number % given.twice == given.twice - 1 else [at]
                out = place / "killed"
                text = kill_and_resume(scenario, whole, out, places, given.report)
                kills += len(places)
                if text:
                    failures += 1
                    print(f"{name}, {places} of {last}, {whole.places[at - 1]}: {text}", flush=True)
                shutil.rmtree(out, ignore_errors=True)
        print(f"{name}: {each} runs killed over {last} places, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{kills} kills, {failures} runs that differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

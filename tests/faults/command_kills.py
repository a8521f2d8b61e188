"""Commands on somebody's own images that are killed at random moments and repeated: which files stay behind.

The images are scikit-learn's digits as PNG files. The files of a killed and repeated command are compared with those of
one that nobody killed: in the folders that it writes, in the cache of features and in the folder of temporary files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from . import kills

CLASSES = 24  # of which twelve train: the fewest on which fit tries its candidates
EACH = 6  # images of a class
SETTINGS = ("schedule.epochs=2", "sampler.iterations=3", "data.split=class", "evaluation.figures=few")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A command that is killed, and repeated.

    Args:
        arguments: of ``pml-ext``, with ``{images}``, ``{run}`` and ``{out}`` for folders.
        again: what is added where it was killed after it had written something.
        needs: the command that is done before, in a folder of a run; "" for none.
    """

    arguments: tuple[str, ...]
    again: tuple[str, ...] = ()
    needs: str = ""


_FIT = ("fit", "{images}", "--device", "cpu", "--out", "{run}")
_OPTIONS = tuple(word for setting in SETTINGS for word in ("--set", setting))
SCENARIOS = {
    "fit": Scenario((*_FIT, *_OPTIONS), ("--resume",)),
    "index": Scenario(("index", "{run}", "{images}", "--device", "cpu"), needs="fit"),
    "query -o": Scenario(("query", "{run}", "{images}", "-o", "{out}/answers.jsonl", "--device", "cpu"), needs="index"),
}


class Workplace:
    """Folders of one attempt: what a command reads and writes, all below ``place``."""

    def __init__(self, place: Path, images: Path, before: Path | None) -> None:
        self.place = place
        self.images = images
        for name in ("cache", "temporary", "out"):
            (place / name).mkdir(parents=True)
        if before is not None:
            for name in ("run", "cache"):
                shutil.copytree(before / name, place / name, dirs_exist_ok=True)

    def begin(self, scenario: Scenario) -> int:
        """Begin the command in a process of its own, forked from this one, and return its id."""
        folders = {"images": self.images, "run": self.place / "run", "out": self.place / "out"}
        arguments = [argument.format(**folders) for argument in scenario.arguments]
        if scenario.again and any((self.place / "run").glob("*")):
            arguments += scenario.again
        child = os.fork()
        if child == 0:
            self._become(arguments)
        return child

    def _become(self, arguments: Sequence[str]) -> None:
        """In the forked process: the command, and its end."""
        status = 1
        try:
            os.environ |= {"XDG_CACHE_HOME": str(self.place / "cache"), "TMPDIR": str(self.place / "temporary")}
            tempfile.tempdir = None  # the parent has asked for it before
            with open(self.place / "messages.txt", "a") as messages:
                os.dup2(messages.fileno(), 1)
                os.dup2(messages.fileno(), 2)
            sys.argv = ["pml-ext", *arguments]
            from pml_ext_train.cli import main

            main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def messages(self) -> str:
        """Return the last line that a command has written."""
        lines = (self.place / "messages.txt").read_text().splitlines()
        return lines[-1] if lines else ""


def files_in(workplace: Path) -> list[str]:
    """Return the names of all files below the folders that commands write; each file of events has the same name."""
    names = set()
    for folder in ("run", "cache", "temporary", "out"):
        for path in (workplace / folder).rglob("*"):
            name = path.relative_to(workplace)
            if path.name.startswith("events.out.tfevents"):
                name = name.with_name("events")
            names.add(str(name))
    return sorted(names)


def write_digits(folder: Path) -> None:
    """Write digits of scikit-learn as PNG files of 32 x 32 pixels: a class for each digit and one for some in bold."""
    digits = load_digits()
    for label in range(CLASSES):
        place = folder / f"class{label:02d}"
        place.mkdir(parents=True)
        chosen = np.flatnonzero(digits.target == label % 10)[EACH * (label // 10) :][:EACH]
        for number in chosen.tolist():
            pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(place / f"{number}.png")


def ended(child: int) -> int:
    """Wait for a process; return its exit status, or minus the number of the signal that has ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(child: int, seconds: float) -> int:
    """Kill a process after some time, unless it has ended; return as :func:`ended`."""
    timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
    timer.start()
    # the process keeps its number until it is waited for, so that no other is killed
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    timer.cancel()
    return ended(child)


def do_whole(name: str, place: Path, images: Path, done: dict[str, tuple[Path, float]]) -> None:
    """Do a command that nobody kills, after those that it needs; add its workplace and its seconds to what is done."""
    if name in done:
        return
    scenario = SCENARIOS[name]
    before = None
    if scenario.needs:
        do_whole(scenario.needs, place, images, done)
        before = done[scenario.needs][0]
    work = Workplace(place / name, images, before)
    started = time.monotonic()
    status = ended(work.begin(scenario))
    if status != 0:
        raise RuntimeError(f"{name} ended with {status}: {work.messages()}")
    done[name] = (work.place, time.monotonic() - started)


def kill_and_repeat(name: str, place: Path, images: Path, undisturbed: Path, seconds: float) -> tuple[int, str]:
    """Kill a command after so many seconds, repeat it, and let it end.

    Return how often it was killed, and what differs from the undisturbed one; "" if nothing does.
    """
    scenario = SCENARIOS[name]
    before = undisturbed.parent / scenario.needs if scenario.needs else None
    work = Workplace(place, images, before)
    status = killed(work.begin(scenario), seconds)
    if status not in (0, -signal.SIGKILL):
        return 0, f"it ended with {status}: {work.messages()}"
    kills_done = int(status != 0)
    status = ended(work.begin(scenario))
    if status != 0:
        return kills_done, f"the repeated command ended with {status}: {work.messages()}"
    unequal = sorted(set(files_in(place)) ^ set(files_in(undisturbed)))
    if unequal:
        return kills_done, f"files: {unequal}"
    if scenario.needs:
        return kills_done, ""
    return kills_done, kills.difference(undisturbed / "run", work.place / "run")


def import_once() -> None:
    """Import for all forked processes what commands import; wandb, if timm finds it, makes temporary folders then."""
    for module in (
        "pml_ext_train.cli.app",
        "pml_ext_train.results.run_report",
        "pml_ext_fit.trials",
        "pml_ext_search.trained",
    ):
        importlib.import_module(module)
    with contextlib.suppress(ImportError):
        importlib.import_module("timm")

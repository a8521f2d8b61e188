"""Every file of a run and an export, damaged in five ways: one line, or recovery, never another result.

The files are those that lie on the disk; none is forgotten.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import PmlExtError
from pml_ext_train.files.checksums import changed_files
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import parse_override
from pml_ext_train.results import finish as results

from ..digit_files import write_digits
from . import kills

DAMAGES = ("flipped", "cut", "empty", "garbage", "another's")
RECIPE = "cbml/digits"
OVERRIDES = (
    *kills.QUICK,
    "evaluation.validation=0.3",
    "evaluation.select=map_at_r",
    "sampler.batch_size=56",
    "engine.checkpoint_minutes=1e-9",
)


class Ear:
    """A listener that keeps what it is told, and can end a run."""

    def __init__(self, last: int | None = None) -> None:
        self.told: list[str] = []
        self._left = last

    def step(self, text: str) -> None:
        self.told.append(text)

    def iteration(self, *_: float) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt

    def warn(self, text: str) -> None:
        self.told.append(text)


def trained(out: Path, seed: int = 0, last: int | None = None, resume: bool = False) -> list[str]:
    """Trains, without a figure in the report, and gives what it told.

    Args:
        out: the folder.
        seed: of the run.
        last: the iteration after which the run is interrupted.
        resume: whether it goes on.
    """
    overrides = map(parse_override, OVERRIDES)
    ear = Ear(last)
    real = results.write_run_report
    results.write_run_report = _small_report
    try:
        train(RECIPE, out, seed=seed, device="cpu", overrides=overrides, listener=ear, resume=resume)
    except KeyboardInterrupt:
        pass
    finally:
        results.write_run_report = real
    return ear.told


def _small_report(view: Any, *_: Any) -> None:
    (view.folder / "report.html").write_text("the report " * 40)
    (view.folder / "figures").mkdir(exist_ok=True)
    (view.folder / "figures" / "one.png").write_bytes(b"a figure " * 40)


class Made:
    """Runs of two seeds, an export of each; the first run again, interrupted in its last epoch.

    Args:
        place: a folder.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.images = write_digits(place / "images", 20)
        for seed, name in enumerate(("one", "other")):
            trained(place / name / "finished", seed)
            load_run(place / name / "finished", "cpu").export(place / name / "export")
        trained(place / "one" / "interrupted", last=8)

    def files(self, what: str) -> list[str]:
        """The paths of all files of a run or an export."""
        folder = self.place / "one" / what
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.stat().st_size
        )

    def damaged(self, what: str, name: str, damage: str, out: Path) -> Path:
        """A copy of a folder with one file damaged.

        Args:
            what: ``"finished"``, ``"interrupted"`` or ``"export"``.
            name: the file's path in it.
            damage: one of ``DAMAGES``.
            out: where.
        """
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(self.place / "one" / what, out)
        whole = (out / name).read_bytes()
        half = len(whole) // 2
        (out / name).write_bytes(
            {
                "flipped": lambda: whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :],
                "cut": lambda: whole[:half],
                "empty": lambda: b"",
                "garbage": lambda: b"\x80garbage\xff" * 50,
                "another's": lambda: self._twin(what, name).read_bytes(),
            }[damage]()
        )
        return out

    def _twin(self, what: str, name: str) -> Path:
        """The file of the other run, which has ended; some names have a number in them."""
        twin = self.place / "other" / ("finished" if what == "interrupted" else what) / name
        if twin.exists():
            return twin
        return next(twin.parent.glob(f"{twin.name[:6]}*"), twin.with_name("last.pt"))


def surprise(made: Made, what: str, name: str, damage: str) -> str:
    """What is wrong with how a damaged file is taken; "" if nothing is.

    Args:
        made: what there is.
        what: as of :meth:`Made.damaged`.
        name: of the file.
        damage: to it.
    """
    folder = made.damaged(what, name, damage, made.place / "damaged")
    whole = made.place / "one"
    if (folder / name).read_bytes() == (whole / what / name).read_bytes():
        return ""  # the other run's is the same
    check: Callable[[], str] = {
        "finished": lambda: _finished(folder, whole / what, name),
        "interrupted": lambda: _resumed(folder, whole / "finished", name),
        "export": lambda: _export(folder, name),
    }[what]
    try:
        return check()
    except PmlExtError as error:
        text = str(error)
        return "" if len(text) < 700 and "\n" not in text and folder.name in text else f"the line {text!r}"


def _finished(folder: Path, whole: Path, name: str) -> str:
    """Goes on with a run that has ended, and loads it."""
    told = trained(folder, resume=True)
    recovered = name == "SHA256SUMS" and (folder / name).read_bytes() == (whole / name).read_bytes()
    if not any(Path(name).name in text for text in told) and not recovered:
        return "nothing was told"
    readers = {"metrics.json": _metrics, "logs.db": kills._tables, "*.csv": kills._rows}
    if name == "records/logs.db":
        readers = {"metrics.json": _metrics}
    if text := kills.difference(whole, folder, readers):
        return text
    left = changed_files(folder)
    if left not in ([], [name]):
        return f"{left} are not what their checksums say"
    points = [load_run(each, "cpu").embed(opened(folder.parent / "images")) for each in (whole, folder)]
    return "" if torch.equal(*points) else "other embeddings"


def opened(folder: Path) -> list[Image.Image]:
    """The images of a folder, which the network embeds: no store knows them."""
    return [Image.open(path) for path in sorted(folder.iterdir())]


def _resumed(folder: Path, whole: Path, name: str) -> str:
    """Goes on with a run that was interrupted."""
    trained(folder, resume=True)
    if text := kills.difference(whole, folder, {"metrics.json": _metrics, "*.pt": _weights}):
        return text
    # A changed number in a database is not noticed, nor a damaged file of TensorBoard's, and no metric depends on them.
    if name.startswith(("records/", "tensorboard/")):
        return ""
    if kills.names_in(whole) != kills.names_in(folder):
        return "other files"
    return kills.difference(whole, folder, kills.RECORDS)


def _metrics(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_bytes())
    return {key: values[key] for key in sorted(values) if key not in ("seconds", "warnings")}


def _weights(path: Path) -> dict[str, Any]:
    """A checkpoint without warnings and times; of an untrained network the embeddings count."""
    state = kills._state(path)
    if path.name == "before.pt":
        return {"embeddings": state["embeddings"]}
    return {key: value for key, value in state.items() if key != "warnings"}


def _export(folder: Path, name: str) -> str:
    """What the program says that the lines are for."""
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if name == "SHA256SUMS":  # cut behind a line it says nothing; what it is for is whole
        return ""
    return "" if done.returncode != 0 and name in done.stdout else "it does not say so"

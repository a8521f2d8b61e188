"""Every file of a run and an export, damaged in five ways: one line, or recovery, never another result."""

import contextlib
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import PmlExtError
from pml_ext_train.files.checksums import SUMS, changed_files, read_sums
from pml_ext_train.launch.launch import train
from pml_ext_train.results import finish as results

from ..digit_files import write_digits
from ..overrides import typed
from . import kills

DAMAGES = ("flipped", "cut", "empty", "garbage", "another's")

OVERRIDES = typed([*kills.SELECTION, "engine.checkpoint_minutes=1e-9"])


def trained(out: Path, seed: int = 0, last: int | None = None, resume: bool = False) -> list[str]:
    """Trains, without a figure in the report, and gives what it told.

    Args:
        out: the folder.
        seed: of the run.
        last: the iteration after which the run is interrupted.
        resume: whether it goes on.
    """
    listener = Mock(spec=["step", "iteration", "warn"])
    if last is not None:
        listener.iteration.side_effect = [None] * last + [KeyboardInterrupt]
    with patch.object(results, "write_run_report", _small_report), contextlib.suppress(KeyboardInterrupt):
        train("cbml/digits", out, seed=seed, device="cpu", overrides=OVERRIDES, listener=listener, resume=resume)
    return [call.args[0] for call in (*listener.step.call_args_list, *listener.warn.call_args_list)]


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
    readers = {"metrics.json": _metrics}
    if name != "records/logs.db":
        readers |= {"logs.db": kills._tables, "*.csv": kills._rows}
    if text := kills.difference(whole, folder, readers):
        return text
    if left := {*changed_files(folder)} - {name}:
        return f"{left} are not what their checksums say"
    # Open images are embedded by the network: no store knows them.
    images = [Image.open(path) for path in sorted((folder.parent / "images").iterdir())]
    points = [load_run(each, "cpu").embed(images) for each in (whole, folder)]
    return "" if torch.equal(*points) else "other embeddings"


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
    return {key: value for key, value in kills._metrics(path).items() if key != "warnings"}


def _weights(path: Path) -> dict[str, Any]:
    """A checkpoint without warnings and times; of an untrained network the embeddings count."""
    state = kills._state(path)
    names = ["embeddings"] if path.name == "before.pt" else state.keys() - {"warnings"}
    return {name: state[name] for name in sorted(names)}


def _export(folder: Path, name: str) -> str:
    """What the program says that the lines are for."""
    if name == "SHA256SUMS":  # cut behind a line it says nothing; what it is for is whole
        return ""
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    return "" if done.returncode != 0 and name in done.stdout else "it does not say so"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("files"))


# What each folder holds, so that this file says what a new kind of file wants.
KNOWN = {
    "finished": {"", "checkpoints", "figures", "records", "tensorboard", "tensorboard/epochs"},
    "interrupted": {"", "checkpoints", "records", "tensorboard", "tensorboard/epochs"},
    "export": {""},
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", KNOWN)
def test_damaged_files_are_reported_or_restored(made, what):
    names = made.files(what)
    assert {name.rpartition("/")[0] for name in names} == KNOWN[what]
    if what == "export":
        damaged = itertools.product(names, DAMAGES)
    else:
        damaged = zip(names[:: {"finished": 4, "interrupted": 2}[what]], itertools.cycle(DAMAGES), strict=False)
    surprises = {each: surprise(made, what, *each) for each in damaged}
    assert {each: text for each, text in surprises.items() if text} == {}


@pytest.mark.parametrize("name", ["report.html", "checkpoints/last.pt"])
def test_a_damaged_checkpoint_keeps_its_checksum(made, name):
    assert surprise(made, "finished", name, "flipped") == ""


def test_every_file_of_a_run_has_a_checksum(made):
    names = made.files("finished")
    assert len(names) > 15
    assert {*read_sums(made.place / "one" / "finished"), SUMS} == {*names}

"""A folder of images and its index, which the tests of retrieval share and leave as they are."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext import load_run, registry
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.query.gallery import Gallery
from pml_ext_search.trained import TrainedRun
from pml_ext_train.launch.launch import train

from ...overrides import typed

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 digits as PNG files, one sub-folder a class, and two files that are no images."""
    place = write_digits(tmp_path_factory.mktemp("images"), range(200))
    (place / "2" / "broken.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("no image either")
    (place / ".hidden.png").write_bytes(b"not looked at")
    return place


def write_digits(place: Path, numbers: range) -> Path:
    """Write digits as files in a folder for each class."""
    digits = load_digits()
    for number in numbers:
        file = place / str(digits.target[number]) / f"{number:04d}.png"
        file.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray((digits.images[number] * 255 / 16).round().astype(np.uint8)).save(file)
    return place


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of 20 and of 25 digits, some in both."""
    place = tmp_path_factory.mktemp("few")
    return write_digits(place / "old", range(20)), write_digits(place / "new", range(10, 35))


@pytest.fixture(scope="session")
def indexed(
    runs: tuple[Path, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainedRun, Gallery]:
    """A run's collection; the run is this worker's own, as the other workers have other folders of images."""
    run = load_run(shutil.copytree(runs[0], tmp_path_factory.mktemp("indexed") / "run"), "cpu")
    return run, run.index(folder)


@pytest.fixture(scope="session")
def whole(runs: tuple[Path, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embeddings of the folder in Parquet files."""
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    return load_run(runs[0], "cpu").embed_part(folder, out=tmp_path_factory.mktemp("whole") / "parts")


def trained(recipe: str, out: Path, *settings: str) -> list[dict[str, Any]]:
    """Train a run without a report, which takes most of the time of a short one: its metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        return train(recipe, out=out, overrides=typed(settings), device="cpu")


def made_up(
    run: TrainedRun, points: torch.Tensor, factory: str = "", paths: Sequence[str] = (), folder: Path = Path("/photos")
) -> Gallery:
    """Index made-up embeddings; no image needs to exist."""
    paths = paths or [f"{number:05d}.png" for number in range(len(points))]
    count = len(points)
    run.collection.create(replace=True)
    written = run.collection.append([os.fsencode(folder / path) for path in paths], [(1, 1)] * count, points.numpy())
    stats = np.ones((count, 2), dtype=np.int64)
    run.collection.write_index(
        Embedded(folder, paths, points, {}, stats, count, np.array([*written.values()])), factory
    )
    return run.gallery()


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, byte: int | None = None, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if byte is None else byte] ^= 1 << bit
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\x80garbage\xff" * 500)


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def killed(work: Callable[[], Any], flushes: int) -> None:
    """Do a work in a fork of this process, which is killed as it flushes a file for the so-manieth time."""

    def mortal() -> None:
        torch.set_num_threads(1)  # OpenMP's threads are not forked
        real = os.fsync
        done = []

        def deadly(file: int) -> None:
            real(file)
            done.append(file)
            if len(done) == flushes:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = deadly
        work()

    process = multiprocessing.get_context("fork").Process(target=mortal)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture
def make(runs: tuple[Path, Path], tmp_path: Path) -> Callable[..., TrainedRun]:
    """Load the first run with a collection of its own, and index a folder if one is given."""

    def load(store: str = "store", indexed: Path | None = None, **settings: Any) -> TrainedRun:
        run = load_run(runs[0], "cpu", store=tmp_path / store, **settings)
        if indexed is not None:
            run.index(indexed)
        return run

    return load


@pytest.fixture
def command(pml_ext_command: Command) -> Command:
    """Runs the command line in this process, under a shorter name."""
    return pml_ext_command


@pytest.fixture
def json_of(command: Command) -> Callable[..., Any]:
    """Runs a command that has to succeed: what it prints as JSON."""

    def run(*arguments: object) -> Any:
        done = command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def text_of(command: Command) -> Callable[..., str]:
    """Runs a command that has to succeed: the words that it prints, with single spaces."""

    def run(*arguments: object) -> str:
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    return run


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    """Runs a command that has to be refused: its error, with single spaces."""

    def run(*arguments: object) -> str:
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        return " ".join(done.stderr.split())

    return run


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Leaves a plugin out for the rest of the test."""
    with contextlib.ExitStack() as stack:

        def leave_out(name: str) -> None:
            monkeypatch.setenv("PML_EXT_BLOCK", name)
            stack.enter_context(registry.isolated())

        yield leave_out


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An empty folder, beside the collection."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def rows(images: Path) -> int:
    """How many files the collection beside a folder has embeddings of."""
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        return connection.execute("SELECT count(*) FROM embedded").fetchone()[0]


def execute(images: Path, statement: str, *values: object) -> None:
    """Change the database of the collection beside a folder."""
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection, connection:
        connection.execute(statement, values)


def ids_of(run: TrainedRun) -> dict[str, int]:
    """The ids of an index by path."""
    embedded = run.gallery().embedded
    return dict(zip(embedded.paths, embedded.ids.tolist(), strict=True))

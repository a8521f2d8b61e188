"""A folder of images and its index, which the tests of retrieval share and leave as they are."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import warnings
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
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.query.gallery import Gallery
from pml_ext_search.trained import TrainedRun

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 digits as PNG files, one sub-folder a class, and two files that are no images."""
    place = tmp_path_factory.mktemp("images")
    write_digits(place, range(200))
    (place / "2" / "broken.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("no image either")
    (place / ".hidden.png").write_bytes(b"not looked at")
    return place


def write_digits(place: Path, numbers: range) -> None:
    digits = load_digits()
    for number in numbers:
        file = place / str(digits.target[number]) / f"{number:04d}.png"
        file.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray((digits.images[number] * 255 / 16).round().astype(np.uint8)).save(file)


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of 20 and of 25 digits, some in both."""
    place = tmp_path_factory.mktemp("few")
    write_digits(place / "old", range(20))
    write_digits(place / "new", range(10, 35))
    return place / "old", place / "new"


@pytest.fixture(scope="session")
def indexed(
    runs: tuple[Path, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainedRun, Gallery]:
    """A run's collection; the run is this worker's own, as the other workers have other folders of images."""
    run = load_run(shutil.copytree(runs[0], tmp_path_factory.mktemp("indexed") / "run"), "cpu")
    with warnings.catch_warnings(action="ignore", category=SkippedImage):
        return run, run.index(folder)


@pytest.fixture(scope="session")
def whole(runs: tuple[Path, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embeddings of the folder in Parquet files; needs the extra parquet."""
    return load_run(runs[0], "cpu").embed_part(folder, out=tmp_path_factory.mktemp("whole") / "parts")


def made_up(
    run: TrainedRun, points: torch.Tensor, factory: str = "", paths: Sequence[str] = (), folder: Path = Path("/photos")
) -> Gallery:
    """Index made-up embeddings; no image needs to exist."""
    paths = paths or [f"{number:05d}.png" for number in range(len(points))]
    count = len(points)
    run.collection.create(replace=True)
    written = run.collection.append([os.fsencode(folder / path) for path in paths], [(1, 1)] * count, points.numpy())
    stats = np.ones((count, 2), dtype=np.int64)
    numbers = np.array([*written.values()])
    run.collection.write_index(Embedded(folder, paths, points, {}, stats, count, numbers), factory)
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
    """Load the first run with a collection of its own."""
    return lambda store="store", **settings: load_run(runs[0], "cpu", store=tmp_path / store, **settings)


@pytest.fixture
def command(pml_ext_command: Command) -> Command:
    """Runs the command line in this process, under a shorter name."""
    return pml_ext_command


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
    if not (images.parent / "store" / "images.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        return connection.execute("SELECT count(*) FROM embedded").fetchone()[0]


def execute(images: Path, statement: str) -> None:
    """Change the database of the collection beside a folder."""
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        connection.execute(statement)
        connection.commit()


def of_index(run: TrainedRun) -> tuple[Sequence[str], list[int]]:
    """Return the paths and ids of an index."""
    embedded = run.gallery().embedded
    return embedded.paths, embedded.ids.tolist()

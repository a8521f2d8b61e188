"""Loading of runs for commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit

from pml_ext.errors import ConfigError
from pml_ext_train.cli import Device, Progress, process_number, say
from pml_ext_train.files import check_writable, doubt_about
from pml_ext_train.networks import By

if TYPE_CHECKING:
    from pml_ext_train.data import Pages

    from ..embedding.embedding import OnProgress
    from ..trained import TrainedRun

IndexedFolder = Annotated[
    Path | None,
    Argument(
        metavar="FOLDER",
        help="Image folder, a table of images and boxes, or a file of vectors (default: the indexed one).",
    ),
]
RunOrImages = Annotated[
    Path,
    Argument(
        metavar="RUN",
        help="The folder of a finished run (pml-ext train, pml-ext fit), or of images, which get a run of their own.",
    ),
]
STORES = "lancedb:DIR, pgvector:postgresql://..., qdrant:DIR|URL"


def run_for_command(place: Path, device: Device, exclude: Sequence[str] | None = None) -> tuple[Path, Path | None]:
    """The run that a first argument names, and its folder of images, if any."""
    from ..run_of_folder import run_of

    with Progress() as bar:
        return run_of(place, device, bar, exclude)


def searched_run(
    place: Path,
    device: Device,
    bar: Progress,
    store: Path | None,
    by: By | None,
    workers: int | None = None,
    exclude: Sequence[str] | None = None,
    reads_folder: bool = False,
) -> TrainedRun:
    """Load the run of a command's first argument; index a folder in its place.

    ConfigError for patterns to ``exclude`` unless the command reads a folder, this one or another.
    """
    from ..run_of_folder import run_of

    run, images = run_of(place, device, bar, exclude)
    if exclude and images is None and not reads_folder:
        raise ConfigError(
            f"--exclude is for folders, and {place} is a run; its index is searched as it was made. Type: "
            f"{shlex.join(['pml-ext', 'index', str(place), '--exclude', *exclude[:1]])}"
        )
    trained = load_for_command(run, device, workers, store, bar.embedding, by, exclude=exclude)
    if images is not None:
        changes = trained.index(images, retry_damaged=False).changes
        if changes is not None and (changes.new or changes.changed or changes.gone):
            say(f"{images}: {changes}")
    return trained


def listed_run(
    place: Path,
    device: Device,
    store: Path | None,
    by: By | None,
    count: int,
    csv: Path | None,
    sheet: Path | None,
    exclude: Sequence[str] | None,
) -> tuple[TrainedRun, str]:
    """The run of a command that lists ``count`` images, and what to call them; see :func:`searched_run`."""
    for option, file in (("--csv", csv), ("--sheet", sheet)):
        if file is not None:
            check_writable(option, file, file=True)
    if count < 1:
        raise ConfigError(f"-n {count}: wanted 1 or more")
    with Progress() as bar:
        trained = searched_run(place, device, bar, store, by, exclude=exclude)
    if not trained.takes_vectors:
        return trained, "image"
    if sheet is not None:
        raise ConfigError(f"--sheet: {place} has vectors, no image files; leave it out")
    return trained, "vector"


def say_doubts(trained: TrainedRun) -> None:
    """Name pictures that are in several classes, and classes with nearly equal names."""
    from ..open_set.calibration import shared_pictures

    embedded = trained.indexed_images()
    for line in (shared_pictures(embedded)[1], doubt_about(embedded.classes)):
        if line:
            say(line)


@contextmanager
def embedding_run(
    run: Path,
    folder: Path | None,
    device: Device,
    workers: int | None,
    store: Path | None,
    by: By | None = None,
    size: int | None = None,
    exclude: Sequence[str] | None = None,
    pages: Pages | None = None,
) -> Iterator[TrainedRun]:
    """Load a run that embeds a folder's images, with progress on stderr.

    Under torchrun each rank embeds a part; rank 0 continues with all embeddings, the others exit.
    """
    from pml_ext.distributed import choose_device, process_group

    with process_group(choose_device(device).partition(":")[0]):
        if process_number() != 0:
            trained = load_for_command(run, device, workers, store, None, by, size, exclude, pages)
            if not trained.takes_vectors:  # a single process embeds vectors faster than it could share them
                trained.embed_folder(trained.indexed_folder() if folder is None else folder)
            raise Exit
        with Progress() as bar:
            yield load_for_command(run, device, workers, store, bar.embedding, by, size, exclude, pages)


def load_for_command(
    run: Path,
    device: Device,
    workers: int | None = None,
    store: Path | None = None,
    listener: OnProgress | None = None,
    by: By | None = None,
    size: int | None = None,
    exclude: Sequence[str] | None = None,
    pages: Pages | None = None,
) -> TrainedRun:
    """Load a run for retrieval; on a CPU, the process reuses freed memory."""
    from pml_ext.distributed import choose_device, keep_freed_memory

    from ..trained import load_run

    keep_freed_memory(choose_device(device))
    return load_run(run, device, workers, store, listener, by, size, exclude, pages)


def read_list(listing: Path) -> list[str]:
    """The lines of a file of paths."""
    try:
        return [line for line in listing.read_text("utf-8", errors="surrogateescape").split("\n") if line]
    except OSError as error:
        raise ConfigError(f"--list {listing}: cannot be read ({error.strerror or error})") from None

"""``pml-ext embed``, ``cluster`` and ``export``; what :mod:`.search` shares with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .train import Device

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
ImageFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, sub-folders included.")]
OnDevice = Annotated[Device, typer.Option(help="Where to compute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


_QUIET = 10  # seconds between two lines of progress, where stderr is no terminal


class Metric(StrEnum):
    """What distances are."""

    euclidean = "euclidean"
    learned = "learned"


@contextmanager
def skipped_files() -> Iterator[None]:
    """Names the files that are left out, on stderr, and counts them."""
    from ..retrieval import heard
    from .output import stderr

    with heard() as texts:
        try:
            yield
        finally:
            for text in texts:
                stderr().print(f"pml-ext: {text}", soft_wrap=True)
            if texts:
                stderr().print(f"pml-ext: {len(texts)} file{'s' * (len(texts) > 1)} skipped", soft_wrap=True)


def embed(
    run: RunFolder,
    folder: ImageFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz file to write: embeddings, paths, classes.")],
    device: OnDevice = Device.auto,
) -> None:
    """Embed the images of a folder with a trained run."""
    from ..errors import ConfigError
    from ..retrieval import check_file, load_run, save_embeddings
    from .output import stdout

    if out.suffix != ".npz":
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz")
    check_file("-o", out)
    trained = load_run(run, device.value)
    with skipped_files():
        embedded = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(embedded, out)
    stdout().print(f"{len(embedded.paths)} embeddings of size {embedded.embeddings.shape[1]}: {out}")


def cluster(
    run: RunFolder,
    folder: ImageFolder,
    clusters: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="How many clusters, found by k-means; auto where that is not known, found by HDBSCAN, which leaves "
            "images that lie in no cluster in cluster -1.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    smallest: Annotated[
        int | None, typer.Option(help="With --clusters auto: images that a cluster has at least (default 5).")
    ] = None,
    sheets: Annotated[int, typer.Option(help="How many clusters, the largest first, have a contact sheet.")] = 100,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Sort the images of a folder into clusters: a CSV, and contact sheets of the largest."""
    from ..retrieval import load_run, printable
    from .output import print_json, print_table, stdout

    trained = load_run(run, device.value)
    number = int(clusters) if clusters.removeprefix("-").isdecimal() else clusters
    with skipped_files(), _sheets_drawn() as drawn:
        result = trained.cluster(folder, number, out, smallest=smallest, sheets=sheets, progress=drawn)
    if as_json:
        print_json(result.as_json())
        return
    paths, classes = result.grouping.embedded.paths, any(each.share is not None for each in result.clusters)
    rows = [
        [str(each.number), str(len(each.members))]
        + [printable(each.name), f"{each.share or 0:.0%}"] * classes
        + [printable(", ".join(paths[member] for member in each.members[:3]))]
        for each in result.clusters
    ]
    columns = ["cluster", "images", *["class", "share"] * classes, "for example"]
    print_table(columns, rows, right=[0, 1, 3] if classes else [0, 1])
    noise = sum(len(each.members) for each in result.clusters if each.number < 0)
    stdout().print(f"{sum(each.number >= 0 for each in result.clusters)} clusters by {result.grouping.method}"
                   + f"; {noise} images in none (cluster -1)" * (clusters == "auto"))  # fmt: skip
    stdout().print(f"table and {len(result.sheets)} contact sheets: {out or run / 'clusters'}")


@contextmanager
def _sheets_drawn() -> Iterator[Callable[[int, int], None]]:
    """Says how many contact sheets are drawn: in a line that is written over on a terminal, every 10 s elsewhere."""
    from .output import stderr

    console, last = stderr(), time.monotonic()

    def drawn(done: int, of: int) -> None:
        nonlocal last
        if console.is_terminal:
            console.print(f"contact sheets: {done} of {of}", end="\r" if done < of else "\n")
        elif time.monotonic() - last > _QUIET:
            last = time.monotonic()
            console.print(f"contact sheets: {done} of {of}")

    yield drawn


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
) -> None:
    """Write the network as model.safetensors and preprocess.json, for programs without pml_ext."""
    from ..retrieval import load_run
    from .output import stdout

    place = load_run(run, "cpu").export(out)
    stdout().print(f"model.safetensors and preprocess.json: {place}")

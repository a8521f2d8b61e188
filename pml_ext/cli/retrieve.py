"""``pml-ext embed``, ``index``, ``query``, ``cluster`` and ``export``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .train import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
def skipped() -> Iterator[None]:
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
    with skipped():
        embedded = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(embedded, out)
    stdout().print(f"{len(embedded.paths)} embeddings of size {embedded.embeddings.shape[1]}: {out}")


def index(
    run: RunFolder,
    folder: ImageFolder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/index).")] = None,
    factory: Annotated[
        str,
        typer.Option("--index", metavar="FACTORY", help='A faiss factory string, such as "IVF64,Flat".'),
    ] = "",
    effort: Annotated[
        int | None,
        typer.Option(
            help="How hard a faiss index searches: nprobe of IVF, efSearch of HNSW. By default it is doubled, from 1 "
            "and from 64, until recall@10 reaches 0.95 on a sample of 200 images."
        ),
    ] = None,
    device: OnDevice = Device.auto,
) -> None:
    """Index the images of a folder, to query them."""
    from ..retrieval import load_run
    from .output import stdout

    trained = load_run(run, device.value)
    with skipped():
        gallery = trained.index(folder, out, factory, effort)
    stdout().print(f"{len(gallery.embedded.paths)} images indexed: {gallery.place}")
    faiss = gallery.faiss
    if faiss is not None and faiss.recall is not None:
        setting = f" with {faiss.setting} {faiss.effort} (--effort)" if faiss.setting else ""
        stdout().print(f"{factory}{setting}: recall@10 {faiss.recall:.3f} of exact search, on a sample of the images")


def query(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images to look for.")],
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 8,
    gallery: Annotated[Path | None, typer.Option(help="The index to ask (default RUN/index).")] = None,
    metric: Annotated[Metric, typer.Option(help="Distances of embeddings, or the run's learned metric.")] = (
        Metric.euclidean
    ),
    shortlist: Annotated[
        int | None,
        typer.Option(help="With the learned metric: how many of the nearest by distance it re-ranks (default: all)."),
    ] = None,
    effort: Annotated[
        int | None,
        typer.Option(
            help="How hard a faiss index searches: nprobe of IVF, efSearch of HNSW (default: what `pml-ext index` "
            "chose). It is doubled for a query that gets fewer than K answers."
        ),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="The PNG to write (default RUN/query.png).")] = None,
    beside: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run, its answers beside; repeatable.")
    ] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an index: a table, and a picture."""
    from ..retrieval import check_file, load_run, printable, reason_of
    from .output import print_json, print_table

    place = picture or run / "query.png"
    check_file("--picture", place)
    trained = load_run(run, device.value)
    held = trained.gallery(gallery)
    others = [(path.name, other, other.gallery()) for path in beside or () for other in [load_run(path, device.value)]]
    answers = trained.query(images, k, held, metric.value, shortlist, effort)
    if as_json:
        print_json([{"query": a.query, "paths": a.paths, "distances": a.distances} for a in answers])
    else:
        word = "distance" if metric is Metric.euclidean else "score"
        rows = [
            [printable(answer.query), str(rank), printable(path), f"{distance:.4f}"]
            for answer in answers
            for rank, (path, distance) in enumerate(zip(answer.paths, answer.distances, strict=True), start=1)
        ]
        print_table(["query", "rank", "path", word], rows, right=[1, 3])
    try:
        compared = [(name, other.query(images, k, theirs), theirs.embedded.folder) for name, other, theirs in others]
        _draw(place, trained.pictures(answers, held, compared), picture is None, as_json)
    except Exception as error:  # the answers are there: whatever is wrong with a picture costs the picture alone
        _warn(f"no picture: {reason_of(error)}")


def _draw(place: Path, figures: Iterator[Figure], ours: bool, as_json: bool) -> None:
    """Writes ``query.png``, ``query-2.png``, ...; older ones behind the last go, where nobody chose the name."""
    from ..files import write_atomically
    from .output import stdout

    place.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    for number, figure in enumerate(figures, start=1):
        page = _page(place, number)
        write_atomically(page, functools.partial(figure.savefig, format="png"))
        if not as_json:
            stdout().print(f"picture: {page}")
    while ours and (old := _page(place, number := number + 1)).is_file():
        old.unlink()


def _page(place: Path, number: int) -> Path:
    return place if number == 1 else place.with_name(f"{place.stem}-{number}{place.suffix}")


def _warn(text: str) -> None:
    from .output import stderr

    stderr().print(f"pml-ext: warning: {text}", soft_wrap=True)


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
    with skipped(), _sheets_drawn() as drawn:
        result = trained.cluster(folder, number, out, smallest=smallest, sheets=sheets, progress=drawn)
    if as_json:
        print_json(result.as_json())
        return
    paths, classes = result.grouping.embedded.paths, any(each.share is not None for each in result.clusters)
    rows = [
        [str(each.number), str(len(each.members))]
        + [printable(each.name) or "(no folder)", f"{each.share or 0:.0%}"] * classes
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

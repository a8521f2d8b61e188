"""``pml-ext embed``, ``index``, ``query``, ``cluster`` and ``export``."""

from __future__ import annotations

from collections.abc import Iterator
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


class Metric(StrEnum):
    """What distances are."""

    euclidean = "euclidean"
    learned = "learned"


@contextmanager
def _skipped() -> Iterator[None]:
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
    from ..retrieval import load_run, save_embeddings
    from .output import stdout

    if out.suffix != ".npz":
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz")
    trained = load_run(run, device.value)
    with _skipped():
        found = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(found, out)
    stdout().print(f"{len(found.paths)} embeddings of size {found.embeddings.shape[1]}: {out}")


def index(
    run: RunFolder,
    folder: ImageFolder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/index).")] = None,
    factory: Annotated[
        str,
        typer.Option("--index", metavar="FACTORY", help='A faiss factory string, such as "IVF64,Flat".'),
    ] = "",
    device: OnDevice = Device.auto,
) -> None:
    """Index the images of a folder, to query them."""
    from ..retrieval import load_run
    from .output import stdout

    trained = load_run(run, device.value)
    with _skipped():
        gallery = trained.index(folder, out, factory)
    stdout().print(f"{len(gallery.embedded.paths)} images indexed: {gallery.place}")


def query(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images to look for.")],
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 8,
    gallery: Annotated[Path | None, typer.Option(help="The index to ask (default RUN/index).")] = None,
    metric: Annotated[Metric, typer.Option(help="Distances of embeddings, or the run's learned metric.")] = (
        Metric.euclidean
    ),
    shortlist: Annotated[
        int | None, typer.Option(help="With the learned metric: re-rank so many nearest by distance, not all.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="The PNG to write (default RUN/query.png).")] = None,
    beside: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run, its answers beside; repeatable.")
    ] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an index: a table, and a picture."""
    from ..files import write_atomically
    from ..retrieval import load_run
    from .output import print_json, print_table, stdout

    trained = load_run(run, device.value)
    held = trained.gallery(gallery)
    answers = trained.query(images, k, held, metric.value, shortlist)
    others = []
    for path in beside or ():
        other = load_run(path, device.value)
        theirs = other.gallery()
        others.append((path.name, other.query(images, k, theirs), theirs.embedded.folder))
    figure = trained.picture(answers, held, others)
    place = picture or run / "query.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, lambda temporary: figure.savefig(temporary, format="png"))
    if as_json:
        print_json([{"query": a.query, "paths": a.paths, "distances": a.distances} for a in answers])
        return
    word = "distance" if metric is Metric.euclidean else "score"
    rows = [
        [answer.query, str(place), path, f"{distance:.4f}"]
        for answer in answers
        for place, (path, distance) in enumerate(zip(answer.paths, answer.distances, strict=True), start=1)
    ]
    print_table(["query", "rank", "path", word], rows, right=[1, 3])
    stdout().print(f"picture: {place}")


def cluster(
    run: RunFolder,
    folder: ImageFolder,
    clusters: Annotated[int, typer.Option(help="How many clusters.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Sort the images of a folder into clusters: a CSV, and a contact sheet for each."""
    from ..retrieval import load_run
    from .output import print_json, print_table, stdout

    trained = load_run(run, device.value)
    with _skipped():
        found = trained.cluster(folder, clusters, out)
    if as_json:
        print_json(found)
        return
    members: dict[int, list[str]] = {}
    for path, number in found.items():
        members.setdefault(number, []).append(path)
    rows = [[str(number), str(len(paths)), ", ".join(paths[:3])] for number, paths in sorted(members.items())]
    print_table(["cluster", "images", "for example"], rows, right=[0, 1])
    stdout().print(f"table and contact sheets: {out or run / 'clusters'}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
) -> None:
    """Write the network as model.safetensors and preprocess.json, for programs without pml_ext."""
    from ..retrieval import load_run
    from .output import stdout

    place = load_run(run, "cpu").export(out)
    stdout().print(f"model.safetensors and preprocess.json: {place}")

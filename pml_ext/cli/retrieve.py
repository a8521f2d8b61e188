"""``pml-ext embed``, ``index``, ``query``, ``cluster`` and ``export``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .train import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..retrieval import TrainedRun

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
ImageFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, sub-folders included.")]
OnDevice = Annotated[Device, typer.Option(help="Where to compute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that read images (default: none for fewer than 256, else the number of processors, up to 8)."
    ),
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where embeddings are kept, so that none is computed twice "
                 "(default RUN/embeddings)."),
]  # fmt: skip


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


@contextmanager
def _embedding(
    run: Path, folder: Path, device: Device, workers: int | None, store: Path | None
) -> Iterator[TrainedRun | None]:
    """A run that embeds a folder's images, with progress on stderr; None in a process that only helps.

    Processes that torchrun started embed a part each; the first goes on with all.
    """
    from ..devices import choose_device
    from ..distributed import process_group
    from ..retrieval import load_run
    from .output import process_number, stderr
    from .progress import embedding_progress

    first = process_number() == 0
    with process_group(choose_device(device.value).partition(":")[0]):
        if not first:
            load_run(run, device.value, workers, store).embed_folder(folder)
            yield None
            return
        with _skipped(), embedding_progress(stderr()) as listener:
            yield load_run(run, device.value, workers, store, listener)


def embed(
    run: RunFolder,
    folder: ImageFolder,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The .npz or .parquet file to write: embeddings of length 1, paths, classes."),
    ],
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Embed the images of a folder with a trained run.

    Over several devices: torchrun --nproc-per-node N -m pml_ext embed RUN FOLDER -o FILE; so do index and cluster.
    """
    from ..errors import ConfigError
    from ..retrieval import check_file, save_embeddings
    from .output import print_json, stdout

    if out.suffix not in (".npz", ".parquet"):
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz or .parquet")
    check_file("-o", out)
    with _embedding(run, folder, device, workers, store) as trained:
        if trained is None:
            return
        embedded = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(embedded, out)
    images, size = embedded.embeddings.shape
    if as_json:
        print_json({"file": str(out), "images": images, "size": size, "new": embedded.new, "skipped": embedded.skipped})
    else:
        stdout().print(f"{images} embeddings of size {size}, {embedded.new} of them new: {out}")


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
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
) -> None:
    """Index the images of a folder, to query them."""
    from .output import stdout

    with _embedding(run, folder, device, workers, store) as trained:
        if trained is None:
            return
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
        _draw(place, trained.picture(answers, held, compared), k, as_json)
    except Exception as error:  # the answers are there: whatever is wrong with a picture costs the picture alone
        _warn(f"no picture: {reason_of(error)}")


def _draw(place: Path, figure: Figure, k: int, as_json: bool) -> None:
    from ..files import write_atomically
    from ..retrieval import PICTURED
    from .output import stdout

    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, lambda temporary: figure.savefig(temporary, format="png"))
    if not as_json:
        stdout().print(f"picture: {place}" + f" (the {PICTURED} nearest)" * (k > PICTURED))


def _warn(text: str) -> None:
    from .output import stderr

    stderr().print(f"pml-ext: warning: {text}", soft_wrap=True)


def cluster(
    run: RunFolder,
    folder: ImageFolder,
    clusters: Annotated[int, typer.Option(help="How many clusters.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Sort the images of a folder into clusters: a CSV, and a contact sheet for each."""
    from ..retrieval import printable
    from .output import print_json, print_table, stdout

    with _embedding(run, folder, device, workers, store) as trained:
        if trained is None:
            return
        numbers = trained.cluster(folder, clusters, out)
    if as_json:
        print_json(numbers)
        return
    members: dict[int, list[str]] = {}
    for path, number in numbers.items():
        members.setdefault(number, []).append(path)
    rows = [
        [str(number), str(len(paths)), printable(", ".join(paths[:3]))] for number, paths in sorted(members.items())
    ]
    print_table(["cluster", "images", "for example"], rows, right=[0, 1])
    stdout().print(f"table and contact sheets: {out or run / 'clusters'}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write model.onnx too, for batches of any size.")] = False,
    torch_export: Annotated[
        bool, typer.Option("--torch-export", help="Write model.pt2 too, which torch.export.load reads.")
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="100 images of this folder compare such a file with the network (default: 100 images of noise).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the network for programs without pml_ext: model.safetensors, preprocess.json and a model card."""
    from ..files import read_json
    from ..retrieval import load_run
    from .output import print_json, stdout

    place = load_run(run, "cpu").export(out, onnx, torch_export, images)
    about = read_json(place / "preprocess.json")
    files = [about[key] for key in ("weights", "onnx", "torch_export") if key in about]
    if as_json:
        print_json({"folder": str(place), "files": files})
        return
    for file in files[1:]:
        stdout().print(
            f"{file['file']}: embeddings differ from the network's by {file['largest_difference']:.1e} at most"
        )
    stdout().print(f"{', '.join(file['file'] for file in files)}, preprocess.json and README.md: {place}")

"""``pml-ext embed``, ``cluster`` and ``export``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Device, ImageFolder, OnDevice, RunFolder, StoreFolder, Workers
from .output import print_json, print_table, process_number, stdout
from .progress import progress

if TYPE_CHECKING:
    from ..retrieval import TrainedRun


@contextmanager
def embedding(
    run: Path, folder: Path | None, device: Device, workers: int | None, store: Path | None
) -> Iterator[TrainedRun | None]:
    """Load a run that embeds a folder's images, with progress on stderr.

    Processes that torchrun started embed a part each. The first one goes on with all; the others get None.
    """
    from ..devices import choose_device
    from ..distributed import process_group
    from ..retrieval import load_run

    with process_group(choose_device(device.value).partition(":")[0]):
        if process_number() != 0:
            trained = load_run(run, device.value, workers, store)
            trained.embed_folder(trained.indexed_folder() if folder is None else folder)
            yield None
            return
        with progress() as bar:
            yield load_run(run, device.value, workers, store, bar.embedding)


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

    if out.suffix not in (".npz", ".parquet"):
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz or .parquet")
    check_file("-o", out)
    with embedding(run, folder, device, workers, store) as trained:
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
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Sort the images of a folder into clusters: a CSV, and contact sheets of the largest."""
    from ..errors import printable

    number = int(clusters) if clusters.removeprefix("-").isdecimal() else clusters
    with embedding(run, folder, device, workers, store) as trained:
        if trained is None:
            return
        result = trained.cluster(folder, number, out, smallest=smallest)
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
    found = sum(each.number >= 0 for each in result.clusters)
    noise = sum(len(each.members) for each in result.clusters if each.number < 0)
    in_none = f"; {noise} images in none (cluster -1)" * (clusters == "auto")
    stdout().print(f"{found} clusters by {result.grouping.method}{in_none}")
    stdout().print(f"table and {len(result.sheets)} contact sheets: {out or run / 'clusters'}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write model.onnx too, for batches of any size.")] = False,
    torch_export: Annotated[
        bool, typer.Option("--torch-export", help="Write model.pt2 too, which torch.export.load reads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the network for programs without pml_ext: model.safetensors, preprocess.json and a model card."""
    from ..files import read_json
    from ..retrieval import load_run

    place = load_run(run, "cpu").export(out, onnx, torch_export)
    about = read_json(place / "preprocess.json")
    files = [about[key] for key in ("weights", "onnx", "torch_export") if key in about]
    if as_json:
        print_json({"folder": str(place), "files": files})
        return
    for file in files[1:]:
        largest = f"{file['largest_difference']:.1e}"
        stdout().print(f"{file['file']}: embeddings differ from the network's by {largest} at most")
    stdout().print(f"{', '.join(file['file'] for file in files)}, preprocess.json and README.md: {place}")

"""``pml-ext embed``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from pml_ext.errors import ConfigError
from pml_ext.registry import service
from pml_ext_train.cli import (
    AsJson,
    ComparedBy,
    Exclude,
    OnDevice,
    Progress,
    RayAddress,
    RunFolder,
    StoreFolder,
    Workers,
    print_result,
)
from pml_ext_train.files import check_writable
from pml_ext_train.retrieval import PartsService, RayWorkers

from .loading import embedding_run, load_for_command, read_list

if TYPE_CHECKING:
    from ..trained import TrainedRun

_SOURCES = (
    "A folder of images, sub-folders included; with --part and --on also an address such as s3://bucket/photos, a "
    "Parquet table of path and image, or shards-{000..015}.tar."
)


def embed(
    run: RunFolder,
    folder: Annotated[str, Argument(metavar="FOLDER", help=_SOURCES)],
    out: Annotated[Path, Option("--out", "-o", help="The .npz file to write; with --part and --on, a folder.")],
    part: Annotated[str | None, Option(metavar="K/N", help="Embed the K-th of N parts, for index --from.")] = None,
    listing: Annotated[
        Path | None, Option("--list", metavar="FILE", help="With --part or --on: a file with one path per line.")
    ] = None,
    on: Annotated[Literal["here", "ray"], Option(help="Embed with workers of Ray Data, into Parquet files.")] = "here",
    ray_address: RayAddress = None,
    jobs: Annotated[int | None, Option("--jobs", "-j", min=1, help="Number of Ray workers (default 2).")] = None,
    num_gpus: Annotated[float | None, Option(help="GPUs per Ray worker (default 0).")] = None,
    exclude: Exclude = None,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed the images of a folder into a file.

    For several devices, type torchrun --nproc-per-node N -m pml_ext embed RUN FOLDER -o FILE; this also works for
    index and cluster.

    Examples:
        pml-ext embed runs/birds photographs --out birds.npz
        pml-ext embed runs/birds photographs --out birds.parquet
    """
    if on == "here" and (ray_address, jobs, num_gpus) != (None, None, None):
        raise ConfigError("--ray-address, --jobs and --num-gpus go with --on ray")
    if part is None and on == "here":
        if listing is not None:
            raise ConfigError("--list goes with --part or --on ray; type --part 1/1 for all of it")
        if out.suffix != ".npz":
            raise ConfigError(f"-o {out}: wanted a file that ends in .npz, or a folder and --part 1/1")
        check_writable("-o", out, file=True)
        with embedding_run(run, Path(folder), device, workers, store, by, exclude=exclude) as trained:
            if trained.takes_vectors and store is not None:
                raise ConfigError("--store goes with images; embeddings of vectors are written to the file alone")
            _embed_to_file(trained, Path(folder), out, as_json)
        return
    if store is not None or (workers is not None and on == "ray"):
        raise ConfigError("--store goes without --part and --on ray, and --workers without --on ray")
    number, parts = _part_numbers(part or "1/1")
    sources = folder if listing is None else read_list(listing)
    if exclude and (listing is not None or folder.endswith((".parquet", ".tar"))):
        raise ConfigError("--exclude is for folders; leave it out with --list, a table and tar shards")
    service_of_parts: PartsService = service("parts", "embed --part" if on == "here" else "embed --on ray")

    from ..embedding.reading import listed
    from ..trained import load_embedder

    with Progress() as bar:
        trained = load_for_command(run, device, workers, listener=bar.embedding, by=by, exclude=exclude)
        embedder = trained.images  # refuses a run of vectors
        images = listed(sources, folder, embedder.rules)
        if on == "here":
            written = service_of_parts.write(embedder, images, number, parts, out)
        else:
            load = functools.partial(load_embedder, str(trained.folder.resolve()), device, embedder.by)
            ray = RayWorkers(ray_address, jobs or 2, num_gpus or 0.0)
            written = service_of_parts.write_on_ray(embedder, load, images, number, parts, out, ray)
    text = f"{written.images} images embedded now, {written.files} of {written.files_of_all_parts} files: {out}"
    if part is not None:
        text = f"part {number} of {parts}: {text}"
    about = {
        "folder": str(out),
        "new": written.images,
        "files": written.files,
        "files_of_all_parts": written.files_of_all_parts,
    }
    print_result(as_json, about, text)


def _embed_to_file(trained: TrainedRun, folder: Path, out: Path, as_json: bool) -> None:
    from ..collection.embedded import save_embeddings

    about: dict[str, Any] = {"file": str(out)}
    noun = "vectors" if trained.takes_vectors else "images"
    embedded = trained.vectors.embedded(folder) if trained.takes_vectors else trained.embed_folder(folder)
    save_embeddings(embedded, out)
    about[noun], about["size"] = embedded.embeddings.shape
    text = f"{about[noun]} embeddings of size {about['size']}"
    if not trained.takes_vectors:
        about |= {"new": embedded.new, "skipped": embedded.skipped}
        text += f", {embedded.new} of them new"
    print_result(as_json, about, f"{text}: {out}")


def _part_numbers(part: str) -> tuple[int, int]:
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal()):
        raise ConfigError(f"--part {part}: wanted K/N, such as 3/16")
    return int(number), int(parts)

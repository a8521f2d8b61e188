"""``pml-ext embed``, ``index``, ``query`` and ``cluster``."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from pml_ext.tool import (
    AsJson,
    By,
    ComparedBy,
    ConfigError,
    Device,
    ImageFolder,
    OnDevice,
    Progress,
    RayAddress,
    RunFolder,
    StoreFolder,
    Workers,
    check_writable,
    counted,
    first_of,
    one_line,
    print_json,
    print_result,
    print_table,
    printable,
    process_number,
    say,
    stdout,
)

if TYPE_CHECKING:
    from .clusters import Clusters
    from .embedding import Listener
    from .gallery import Gallery
    from .query import Answer
    from .trained import TrainedRun

IndexedFolder = Annotated[
    Path | None,
    Argument(metavar="[FOLDER]", help="Image folder, or a file of vectors (default: the indexed one)."),
]
_LISTED = 10  # maximum missing or changed images listed by name
_SOURCES = (
    "A folder of images, sub-folders included; with --part and --on also an address such as s3://bucket/photos, a "
    "Parquet table of path and image, or shards-{000..015}.tar."
)
_STORES = "lancedb:DIR, pgvector:postgresql://..., qdrant:DIR|URL"


@contextmanager
def embedding_run(
    run: Path, folder: Path | None, device: Device, workers: int | None, store: Path | None, by: By | None = None
) -> Iterator[TrainedRun]:
    """Load a run that embeds a folder's images, with progress on stderr.

    Under torchrun each rank embeds a part; rank 0 continues with all embeddings, the others exit.
    """
    from pml_ext.tool import choose_device, process_group

    with process_group(choose_device(device).partition(":")[0]):
        if process_number() != 0:
            trained = load_for_command(run, device, workers, store, by=by)
            if not trained.takes_vectors:  # a single process embeds vectors faster than it could share them
                trained.embed_folder(trained.indexed_folder() if folder is None else folder)
            raise Exit
        with Progress() as bar:
            yield load_for_command(run, device, workers, store, bar.embedding, by)


def load_for_command(
    run: Path,
    device: Device,
    workers: int | None = None,
    store: Path | None = None,
    listener: Listener | None = None,
    by: By | None = None,
) -> TrainedRun:
    """Load a run for retrieval; on a CPU, the process reuses freed memory from then on."""
    from pml_ext.tool import choose_device, keep_freed_memory

    from .trained import load_run

    keep_freed_memory(choose_device(device))
    return load_run(run, device, workers, store, listener, by)


def embed(
    run: RunFolder,
    folder: Annotated[str, Argument(help=_SOURCES)],
    out: Annotated[Path, Option("--out", "-o", help="The .npz file to write; with --part and --on, a folder.")],
    part: Annotated[str | None, Option(metavar="K/N", help="Embed the K-th of N parts, for index --from.")] = None,
    listing: Annotated[
        Path | None, Option("--list", metavar="FILE", help="With --part or --on: a file with one path per line.")
    ] = None,
    on: Annotated[Literal["here", "ray"], Option(help="Embed with workers of Ray Data, into Parquet files.")] = "here",
    ray_address: RayAddress = None,
    jobs: Annotated[int | None, Option("--jobs", "-j", min=1, help="Number of Ray workers (default 2).")] = None,
    num_gpus: Annotated[float | None, Option(help="GPUs per Ray worker (default 0).")] = None,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed the images of a folder into a file.

    For several devices, type torchrun --nproc-per-node N -m pml_ext embed RUN FOLDER -o FILE; this also works for
    index and cluster.
    """
    if on == "here" and (ray_address, jobs, num_gpus) != (None, None, None):
        raise ConfigError("--ray-address, --jobs and --num-gpus go with --on ray")
    if part is None and on == "here":
        if listing is not None:
            raise ConfigError("--list goes with --part or --on ray; type --part 1/1 for all of it")
        _embed_to_file(run, Path(folder), out, workers, store, device, as_json, by)
        return
    if store is not None or (workers is not None and on == "ray"):
        raise ConfigError("--store goes without --part and --on ray, and --workers without --on ray")
    from .parts import listed, write_part

    number, parts = _part_numbers(part or "1/1")
    with Progress() as bar:
        trained = load_for_command(run, device, workers, listener=bar.embedding, by=by)
        reader = trained.images  # refuses a run of vectors
        if listing is None:
            work = listed(folder)
        else:
            work = listed(read_list(listing), folder)
        if on == "ray":
            from .on_ray import write_on_ray

            with redirect_stdout(sys.stderr):  # Ray prints its progress on stdout
                images = write_on_ray(
                    run, device, work, number, parts, out, ray_address, jobs or 2, num_gpus or 0.0, by
                )
        else:
            images = write_part(reader, work, number, parts, out)
    files = len(work.part(number, parts))
    text = f"{images} images embedded now, {files} of {len(work.segments)} files: {out}"
    if part is not None:
        text = f"part {number} of {parts}: {text}"
    about = {"folder": str(out), "new": images, "files": files, "files_of_all_parts": len(work.segments)}
    print_result(as_json, about, text)


def _embed_to_file(
    run: Path,
    folder: Path,
    out: Path,
    workers: int | None,
    store: Path | None,
    device: Device,
    as_json: bool,
    by: By | None,
) -> None:
    from .embedding import save_embeddings

    if out.suffix != ".npz":
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz, or a folder and --part 1/1")
    check_writable("-o", out, file=True)
    with embedding_run(run, folder, device, workers, store, by) as trained:
        if trained.takes_vectors:
            _embed_vectors_to_file(trained, folder, out, store, as_json)
            return
        embedded = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(embedded, out)
    images, size = embedded.embeddings.shape
    about = {"file": str(out), "images": images, "size": size, "new": embedded.new, "skipped": embedded.skipped}
    print_result(as_json, about, f"{images} embeddings of size {size}, {embedded.new} of them new: {out}")


def _embed_vectors_to_file(trained: TrainedRun, path: Path, out: Path, store: Path | None, as_json: bool) -> None:
    """Embed a file of vectors into another, without the collection."""
    from .vectors import save_vectors

    if store is not None:
        raise ConfigError("--store goes with images; embeddings of vectors are written to the file alone")
    embedded = trained.vectors.embedded(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_vectors(embedded, out)
    count, size = embedded.embeddings.shape
    print_result(
        as_json, {"file": str(out), "vectors": count, "size": size}, f"{count} embeddings of size {size}: {out}"
    )


def _part_numbers(part: str) -> tuple[int, int]:
    """Return K and N of ``K/N``."""
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal()):
        raise ConfigError(f"--part {part}: wanted K/N, such as 3/16")
    return int(number), int(parts)


def read_list(listing: Path) -> list[str]:
    """Return the lines of a file of paths."""
    try:
        return [line for line in listing.read_text("utf-8", errors="surrogateescape").split("\n") if line]
    except OSError as error:
        raise ConfigError(f"--list {listing}: cannot be read ({error.strerror or error})") from None


def cluster(
    run: RunFolder,
    folder: ImageFolder,
    clusters: Annotated[str, Option(metavar="N|auto", help="Number (k-means), or auto (HDBSCAN).")],
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    smallest: Annotated[int | None, Option(help="With --clusters auto: smallest cluster size (default 5).")] = None,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Cluster a folder's images into a CSV table and contact sheets. HDBSCAN's outliers are cluster -1."""
    number: int | str = clusters
    if clusters.removeprefix("-").isdecimal():
        number = int(clusters)
    with embedding_run(run, folder, device, workers, store, by) as trained:
        result = trained.cluster(folder, number, out, smallest=smallest)
    sheets = {number: str(sheet) for number, sheet in result.sheets.items()}
    shown = [dataclasses.asdict(each) | {"sheet": sheets.get(each.number)} for each in result.clusters]
    about = {"folder": str(folder), "method": result.grouping.method, "table": str(result.table), "clusters": shown}
    found = 0
    noise = 0
    for each in result.clusters:
        if each.number >= 0:
            found += 1
        else:
            noise += len(each.members)
    text = f"{found} clusters by {result.grouping.method}"
    if clusters == "auto":
        text += f"; {noise} images in none (cluster -1)"
    lines = [text, f"table and {len(result.sheets)} contact sheets: {out or run / 'clusters'}"]
    columns, rows = _cluster_rows(result)
    right = [0, 1, 3] if "share" in columns else [0, 1]
    print_result(as_json, about, *lines, columns=columns, rows=rows, right=right)


def _cluster_rows(result: Clusters) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the printed table of clusters."""
    paths = result.grouping.embedded.paths
    with_classes = any(each.share is not None for each in result.clusters)
    columns = ["cluster", "images", "for example"]
    if with_classes:
        columns = ["cluster", "images", "class", "share", "for example"]
    rows = []
    for each in result.clusters:
        row = [str(each.number), str(len(each.members))]
        if with_classes:
            row += [printable(each.name) or "(no folder)", f"{each.share or 0:.0%}"]
        examples = ", ".join(paths[member] for member in each.members[:3])
        rows.append([*row, printable(examples)])
    return columns, rows


def index(
    run: RunFolder,
    folder: IndexedFolder = None,
    factory: Annotated[
        str,
        Option("--index", metavar="exact|FACTORY", help="A faiss factory, as IVF64,Flat (default: exact to 200,000)."),
    ] = "",
    parts: Annotated[
        Path | None, Option("--from", metavar="PARTS", help="Use the embeddings of embed --part; embed nothing.")
    ] = None,
    to: Annotated[str | None, Option(metavar="STORE", help=f"Also write changes to a database: {_STORES}.")] = None,
    check: Annotated[bool, Option("--check", help="Only verify the index and its image files.")] = False,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Index the images of a folder, or the vectors of a file, or update the index."""
    if workers is not None and (check or parts is not None):
        raise ConfigError("--workers is for reading images to embed; leave it out with --check or --from")
    if check:
        if folder is not None or factory or parts is not None or to is not None:
            raise ConfigError("--check reads the index as it is; leave out FOLDER, --index, --from and --to")
        _check_index(load_for_command(run, device, store=store, by=by).gallery(), as_json)
        return
    opened: AbstractContextManager[TrainedRun]
    if parts is None:
        opened = embedding_run(run, folder, device, workers, store, by)
    else:
        opened = nullcontext(load_for_command(run, device, store=store, by=by))
    with opened as trained:
        store_to_fill = None
        if to is not None:
            store_to_fill = trained.open_store(to)  # raises an error before anything is embedded
        if parts is None:
            gallery = trained.index(folder, factory)
        else:
            gallery = trained.write_index(parts, folder, factory)
    about = _about_index(gallery)
    what = f"{gallery.noun} indexed"
    if gallery.by == "features":
        what += " by the features before the head"
    lines = [f"{len(gallery)} {what}: {gallery.place}"]
    if gallery.changes is not None:
        lines.append(str(gallery.changes))
    faiss = gallery.faiss
    if faiss is not None and faiss.recall is not None:
        name = gallery.factory
        if faiss.setting:
            name += f" with {faiss.setting} {faiss.effort}"
        lines.append(_recall_text(name, faiss.recall))
    if store_to_fill is not None:
        stored = store_to_fill.update(gallery.embedded)
        recall = store_to_fill.recall_at_10(gallery.embedded)
        about["store"] = {"to": store_to_fill.shown, **stored._asdict(), "recall_at_10": recall}
        kind = store_to_fill.shown.partition(":")[0]
        lines.append(f"{kind}: {stored}")
        if recall is not None:
            lines.append(_recall_text(kind, recall))
    print_result(as_json, about, *lines)


def _about_index(gallery: Gallery) -> dict[str, Any]:
    """Return what ``index --json`` prints."""
    new, changed, gone, as_before = gallery.changes or (len(gallery), 0, 0, 0)
    effort = None
    recall = None
    if gallery.faiss is not None:
        effort = gallery.faiss.effort
        recall = gallery.faiss.recall
    return {
        "index": str(gallery.place),
        "folder": str(gallery.folder),
        "by": gallery.by,
        "images": len(gallery),
        "new": new,
        "changed": changed,
        "gone": gone,
        "as_before": as_before,
        "search": gallery.factory or "exact",
        "effort": effort,
        "recall_at_10": recall,
    }


def _recall_text(name: str, recall: float) -> str:
    return f"{name}: recall@10 {recall:.3f} of exact search, on a sample of the images"


def _check_index(gallery: Gallery, as_json: bool) -> None:
    """Print which images of an index are gone or changed; exit code 1 if there are some."""
    gone, changed = gallery.check()
    lines = [f"{len(gallery)} {gallery.noun}, all files as they were written: {gallery.place}"]
    for what, paths in (("gone", gone), ("changed", changed)):
        if paths:
            lines.append(f"{len(paths)} {what}: {printable(first_of(paths, _LISTED))}")
    about = {"index": str(gallery.place), "images": len(gallery), "gone": gone, "changed": changed}
    print_result(as_json, about, *lines)
    if gone or changed:
        say(
            f"{len(gone)} {gallery.noun} gone and {len(changed)} changed since they were indexed; type: {gallery.again}"
        )
        raise Exit(1)


def query(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        Argument(
            metavar="IMAGE...",
            help="Images to find; with -o a folder. Of a run of vectors: ids of the index, or a file of vectors.",
        ),
    ] = None,
    k: Annotated[int | None, Option("-k", help="Number of answers (default 8).")] = None,
    metric: Annotated[
        Literal["euclidean", "learned"], Option(help="Of the embeddings, or the run's learned metric.")
    ] = "euclidean",
    shortlist: Annotated[
        int | None, Option(help="With the learned metric: number of nearest images to re-rank (default: all).")
    ] = None,
    rerank: Annotated[
        Literal["average", "alpha", "k-reciprocal"] | None,
        Option(help="Rank again without training: query expansion, or overlap of neighborhoods."),
    ] = None,
    within: Annotated[str | None, Option(metavar="CLASS", help="Search only in this class (a sub-folder).")] = None,
    radius: Annotated[
        float | None, Option(help="Maximum distance of an answer; with --duplicates, of duplicates (default 0.1).")
    ] = None,
    duplicates: Annotated[bool, Option("--duplicates", help="Find near-duplicates in the index.")] = False,
    picture: Annotated[
        Path | None, Option(help="The PNG file (default RUN/query.png; none with --json or a store).")
    ] = None,
    listing: Annotated[
        Path | None, Option("--list", metavar="FILE", help="With -o: a file with one path per line.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Query a folder into this .parquet or .jsonl.")] = None,
    store: Annotated[str | None, Option(metavar="FOLDER|STORE", help=f"Another collection, or {_STORES}.")] = None,
    by: ComparedBy = None,
    workers: Workers = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an image."""
    stored, collection = _place_of(store)
    reranks = shortlist is not None or rerank is not None or metric != "euclidean"
    answers_each = 8 if k is None else k
    if out is not None:
        if duplicates or picture or reranks:
            text = "leave out --duplicates, --picture, --shortlist, --rerank and --metric"
            raise ConfigError(f"-o uses Euclidean distance; {text}")
        if len(images or []) != 1 and (listing is None or images):
            raise ConfigError(f"-o wants one folder, or --list; type: pml-ext query {run} FOLDER -o {out}")
        folder = images[0] if images else None
        with Progress() as bar:
            trained = load_for_command(run, device, workers, collection, bar.embedding, by)
            about = _match_to_file(trained, folder, listing, out, answers_each, within, radius, stored)
        print_result(as_json, about, f"{about['answers']} answers to {about['queries']} {_noun(trained)}: {out}")
        return

    if listing is not None or workers is not None:
        raise ConfigError("--list and --workers go with -o FILE")
    if stored and duplicates:
        raise ConfigError("--duplicates compares the images of an index; leave out --store STORE")
    if bool(images) == duplicates:
        raise ConfigError(f"wanted images or ids to look for, or --duplicates; type: pml-ext query {run} IMAGE")
    if duplicates:
        if picture or within or k is not None or reranks:
            raise ConfigError("--duplicates compares all indexed images; leave out all options but --radius")
        _print_duplicates(load_for_command(run, device, store=collection, by=by), radius, as_json)
        return

    from .query import check_options

    check_options(stored, metric, shortlist, rerank, radius)
    if picture is not None:
        check_writable("--picture", picture, file=True)
    trained = load_for_command(run, device, store=collection, by=by)
    if trained.takes_vectors and picture is not None:
        raise ConfigError(f"--picture: {run} was trained on vectors, which have no pictures; leave it out")
    if picture is None and not (trained.takes_vectors or as_json or stored):
        picture = run / "query.png"
        check_writable("--picture", picture, file=True)

    queries: list[str] | list[Path] = images or []
    if not trained.takes_vectors:
        queries = [Path(image) for image in images or []]
    answers = trained.query(queries, answers_each, metric, shortlist, within, radius, stored, rerank)
    if not as_json:
        _print_answers(trained, answers, metric, radius)
    written = None
    if picture is not None:
        written = _write_picture(trained, answers, picture)
    if as_json:
        about = {"run": str(run), "metric": metric, "picture": None if written is None else str(written)}
        print_json([dataclasses.asdict(answer) | about for answer in answers])
    elif written is not None:
        stdout().print(f"picture: {written}")


def _place_of(store: str | None) -> tuple[str | None, Path | None]:
    """Return the address of a store, or the folder of another collection, of which ``--store`` names one."""
    from .stored import is_store

    if store is None:
        return None, None
    if is_store(store):
        return store, None
    return None, Path(store)


def _match_to_file(
    trained: TrainedRun,
    folder: str | None,
    listing: Path | None,
    out: Path,
    k: int,
    within: str | None,
    radius: float | None,
    stored: str | None,
) -> dict[str, Any]:
    """Write the answers to all queries of a folder, a file of vectors or a list; return what ``-o`` prints."""
    items: str | list[str] = folder or ""
    if listing is not None:
        items = read_list(listing)
    elif trained.takes_vectors:
        folder = None
    queries, answers = trained.match(items, out, k, within, radius, stored, folder)
    return {"file": str(out), "queries": queries, "answers": answers}


def _print_duplicates(trained: TrainedRun, radius: float | None, as_json: bool) -> None:
    """Print groups of indexed images that are within a radius of each other."""
    from .query import RADIUS

    if radius is None:
        radius = RADIUS
    groups = trained.duplicates(radius)
    rows = []
    for number, group in enumerate(groups, start=1):
        rows += [[str(number), printable(path)] for path in group]
    found = f"{counted(len(groups), 'group')} of {len(rows)} {_noun(trained)}"
    print_result(
        as_json,
        {"radius": radius, "groups": groups},
        f"{found} within {radius:g} of another (--radius)",
        columns=["group", _name_column(trained)],
        rows=rows,
        right=[0],
    )


def _print_answers(trained: TrainedRun, answers: list[Answer], metric: str, radius: float | None) -> None:
    """Print a row per answer, and the queries without one."""
    rows = []
    for answer in answers:
        found = zip(answer.paths, answer.classes, answer.distances, strict=True)
        for rank, (path, class_name, distance) in enumerate(found, start=1):
            row = [printable(answer.query), str(rank), printable(path), f"{distance:.4f}"]
            if trained.takes_vectors:
                row.insert(3, printable(class_name))
            rows.append(row)
    columns = ["query", "rank", _name_column(trained), "distance" if metric == "euclidean" else "score"]
    if trained.takes_vectors:  # whose class is not a part of the name
        columns.insert(3, "class")
    print_table(columns, rows, right=[1, len(columns) - 1])
    noun = "vector" if trained.takes_vectors else "image"
    for answer in answers:
        if radius is not None and not answer.paths:
            say(f"{printable(answer.query)}: no {noun} within {radius:g} (--radius)")


def _write_picture(trained: TrainedRun, answers: list[Answer], place: Path) -> Path | None:
    """Draw queries and answers; warn and return None if that fails, since the answers are printed already."""
    from pml_ext.tool import write_atomically

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, functools.partial(trained.picture(answers).savefig, format="png"))
    except Exception as error:
        say(f"warning: no picture: {one_line(error)}")
        return None
    return place


def _name_column(trained: TrainedRun) -> str:
    return "id" if trained.takes_vectors else "path"


def _noun(trained: TrainedRun) -> str:
    return "vectors" if trained.takes_vectors else "images"

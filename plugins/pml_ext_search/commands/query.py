"""``pml-ext query``."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from pml_ext.errors import ConfigError, counted, one_line, printable
from pml_ext_train.cli import (
    AsJson,
    ComparedBy,
    Exclude,
    OnDevice,
    Progress,
    Workers,
    print_json,
    print_result,
    print_table,
    say,
    stdout,
)
from pml_ext_train.files import check_writable

from .loading import STORES, RunOrImages, read_list, searched_run

if TYPE_CHECKING:
    from ..query.query import Answer
    from ..trained import TrainedRun


def query(
    run: RunOrImages,
    images: Annotated[
        list[str] | None,
        Argument(
            metavar="IMAGE",
            help="Images to find; with -o a folder. Of a run of vectors: ids of the index, or a file of vectors.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        Option(
            metavar="TEXT",
            help="In place of images: words to look for, such as 'a red car', with a trunk that has a text encoder "
            "(CLIP, SigLIP); may be repeated.",
        ),
    ] = None,
    k: Annotated[int, Option("-k", help="Number of answers.")] = 8,
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
        float | None,
        Option(help="Maximum distance of an answer."),
    ] = None,
    picture: Annotated[
        Path | None, Option(help="The PNG file (default RUN/query.png; none with --json or a store).")
    ] = None,
    listing: Annotated[
        Path | None, Option("--list", metavar="FILE", help="With -o: a file with one path per line.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Query a folder into this .parquet or .jsonl.")] = None,
    store: Annotated[str | None, Option(metavar="FOLDER|STORE", help=f"Another collection, or {STORES}.")] = None,
    exclude: Exclude = None,
    by: ComparedBy = None,
    workers: Workers = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an image.

    Examples:
        pml-ext query photographs bird.jpg
        pml-ext query runs/birds bird.jpg -k 20
    """
    from ..query.query import check_options
    from ..query.stored import is_store

    stored = store if store is not None and is_store(store) else None
    collection = Path(store) if store is not None and stored is None else None
    reranks = shortlist is not None or rerank is not None or metric != "euclidean"
    if text and (images or out or listing or stored or reranks):
        raise ConfigError(
            "--text is looked for in the features of the run's own index; leave out images, -o, --list, --store STORE, "
            "--metric, --shortlist and --rerank"
        )
    if out is not None:
        if picture or reranks:
            advice = "leave out --picture, --shortlist, --rerank and --metric"
            raise ConfigError(f"-o uses Euclidean distance; {advice}")
        if len(images or []) != 1 and (listing is None or images):
            raise ConfigError(f"-o needs one folder, or --list; type: pml-ext query {run} FOLDER -o {out}")
        with Progress() as bar:
            trained = searched_run(run, device, bar, collection, by, workers, exclude, reads_folder=listing is None)
            place = images[0] if images else ""
            items = place if listing is None else read_list(listing)
            root = None if listing is None else place
            queried, answered = trained.match(items, out, k, within, radius, stored, root)
        line = f"{counted(answered, 'answer')} for {counted(queried, _noun(trained))}: {out}"
        print_result(as_json, {"file": str(out), "queries": queried, "answers": answered}, line)
        return

    if listing is not None or workers is not None:
        raise ConfigError("--list and --workers go with -o FILE")
    if not images and not text:
        raise ConfigError(f"wanted images or ids to look for; type: pml-ext query {run} IMAGE")

    check_options(stored, metric, shortlist, rerank, radius)
    if picture is not None:
        check_writable("--picture", picture, file=True)
    with Progress() as bar:
        trained = searched_run(run, device, bar, collection, by, exclude=exclude)
    run = trained.folder
    if trained.takes_vectors and picture is not None:
        raise ConfigError(f"--picture: {run} was trained on vectors, which have no pictures; leave it out")
    if picture is None and not (trained.takes_vectors or as_json or stored):
        picture = run / "query.png"
        check_writable("--picture", picture, file=True)

    if text:
        answers = trained.query_texts(text, k, within, radius)
    else:
        queries = images if trained.takes_vectors else [Path(image) for image in images or []]
        answers = trained.query(queries, k, metric, shortlist, within, radius, stored, rerank)
    if not as_json:
        _print_answers(trained, answers, metric, radius)
    written = None if picture is None else _write_picture(trained, answers, picture)
    if as_json:
        about = {"run": str(run), "metric": metric, "picture": None if written is None else str(written)}
        print_json([dataclasses.asdict(answer) | about for answer in answers])
    elif written is not None:
        stdout().print(f"picture: {written}")


def _print_answers(trained: TrainedRun, answers: list[Answer], metric: str, radius: float | None) -> None:
    rows = []
    for answer in answers:
        found = zip(answer.paths, answer.classes, answer.distances, strict=True)
        for rank, (path, class_name, distance) in enumerate(found, start=1):
            row = [printable(answer.query), str(rank), printable(path), f"{distance:.4f}"]
            if trained.takes_vectors:
                row.insert(3, printable(class_name))
            rows.append(row)
    columns = [
        "query",
        "rank",
        "id" if trained.takes_vectors else "path",
        "distance" if metric == "euclidean" else "score",
    ]
    if trained.takes_vectors:  # whose class is not a part of the name
        columns.insert(3, "class")
    print_table(columns, rows, right=[1, len(columns) - 1])
    for answer in answers:
        if radius is not None and not answer.paths:
            say(f"{printable(answer.query)}: no {_noun(trained)} within {radius:g} (--radius)")


def _write_picture(trained: TrainedRun, answers: list[Answer], place: Path) -> Path | None:
    """Draw queries and answers, which are printed already; a failure is a warning."""
    from pml_ext_train.files import write_atomically

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, functools.partial(trained.picture(answers).savefig, format="png"))
    except Exception as error:
        say(f"warning: no picture: {one_line(error)}")
        return None
    return place


def _noun(trained: TrainedRun) -> str:
    return "vector" if trained.takes_vectors else "image"

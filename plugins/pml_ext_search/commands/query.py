"""``pml-ext query``."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from typer import Argument, Option

from pml_ext.errors import ConfigError, counted, one_line, printable
from pml_ext_train.cli import (
    AsJson,
    ComparedBy,
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
    stored, collection = _place_of(store)
    reranks = shortlist is not None or rerank is not None or metric != "euclidean"
    answers_each = 8 if k is None else k
    if text and (images or out or listing or stored or reranks):
        raise ConfigError(
            "--text is looked for in the features of the run's own index; leave out images, -o, --list, --store STORE, "
            "--metric, --shortlist and --rerank"
        )
    search = _Search(answers_each, within, radius, stored)
    if out is not None:
        if picture or reranks:
            advice = "leave out --picture, --shortlist, --rerank and --metric"
            raise ConfigError(f"-o uses Euclidean distance; {advice}")
        if len(images or []) != 1 and (listing is None or images):
            raise ConfigError(f"-o needs one folder, or --list; type: pml-ext query {run} FOLDER -o {out}")
        with Progress() as bar:
            trained = searched_run(run, device, bar, collection, by, workers)
            about = _match_to_file(trained, images[0] if images else None, listing, out, search)
        answered = counted(about["answers"], "answer")
        print_result(as_json, about, f"{answered} for {counted(about['queries'], _noun(trained))}: {out}")
        return

    if listing is not None or workers is not None:
        raise ConfigError("--list and --workers go with -o FILE")
    if not images and not text:
        raise ConfigError(f"wanted images or ids to look for; type: pml-ext query {run} IMAGE")

    from ..query.query import check_options

    check_options(stored, metric, shortlist, rerank, radius)
    if picture is not None:
        check_writable("--picture", picture, file=True)
    with Progress() as bar:
        trained = searched_run(run, device, bar, collection, by)
    run = trained.folder
    if trained.takes_vectors and picture is not None:
        raise ConfigError(f"--picture: {run} was trained on vectors, which have no pictures; leave it out")
    if picture is None and not (trained.takes_vectors or as_json or stored):
        picture = run / "query.png"
        check_writable("--picture", picture, file=True)

    queries: list[str] | list[Path] = images or []
    if not trained.takes_vectors:
        queries = [Path(image) for image in images or []]
    if text:
        answers = trained.query_texts(text, answers_each, within, radius)
    else:
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


class _Search(NamedTuple):
    k: int
    within: str | None
    radius: float | None
    store: str | None  # the address of one that is searched instead of the index


def _place_of(store: str | None) -> tuple[str | None, Path | None]:
    """The address of a store, or the folder of another collection, from ``--store``."""
    from ..query.stored import is_store

    if store is None:
        return None, None
    if is_store(store):
        return store, None
    return None, Path(store)


def _match_to_file(
    trained: TrainedRun, folder: str | None, listing: Path | None, out: Path, search: _Search
) -> dict[str, Any]:
    items: str | list[str] = folder or ""
    if listing is not None:
        items = read_list(listing)
    elif trained.takes_vectors:
        folder = None
    queries, answers = trained.match(items, out, *search, folder)
    return {"file": str(out), "queries": queries, "answers": answers}


def _print_answers(trained: TrainedRun, answers: list[Answer], metric: str, radius: float | None) -> None:
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
    for answer in answers:
        if radius is not None and not answer.paths:
            say(f"{printable(answer.query)}: no {_noun(trained)} within {radius:g} (--radius)")


def _write_picture(trained: TrainedRun, answers: list[Answer], place: Path) -> Path | None:
    """Draw queries and answers; if that fails, warn, since the answers are already printed."""
    from pml_ext_train.files import write_atomically

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
    return "vector" if trained.takes_vectors else "image"

"""``pml-ext index`` and ``pml-ext query``."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, one_line, printable
from .options import AsJson, Device, Metric, OnDevice, RunFolder, StoreFolder, Workers
from .output import print_json, print_table, say, stdout
from .retrieve import embedding

if TYPE_CHECKING:
    from ..retrieval import Answer, Gallery, TrainedRun

_SHOWN = 10  # images that are gone or changed, named one by one


def index(
    run: RunFolder,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="A folder of images, sub-folders included (default: the indexed one)."),
    ] = None,
    factory: Annotated[
        str,
        typer.Option(
            "--index",
            metavar="exact|FACTORY",
            help='exact, or a faiss factory string, such as "IVF64,Flat". By default exact up to 200,000 images, then '
            "IVF with the square root of their number as lists.",
        ),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Build nothing: read all of the index, and look for its images.")
    ] = False,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Index the images of a folder, to query them; again, take up what is new, changed and gone."""
    from ..retrieval import load_run

    if check:
        if folder is not None or factory:
            raise ConfigError("--check reads the index as it is; leave out FOLDER and --index")
        _check(load_run(run, device.value, store=store), as_json)
        return
    with embedding(run, folder, device, workers, store) as trained:
        if trained is None:
            return
        gallery = trained.index(folder, factory=factory)
    print_json(_describe(gallery)) if as_json else _print(gallery)


def _print(gallery: Gallery) -> None:
    faiss = gallery.faiss
    stdout().print(f"{len(gallery)} images indexed: {gallery.place}")
    if gallery.changes is not None:
        stdout().print(str(gallery.changes))
    if faiss is not None and faiss.recall is not None:
        setting = f" with {faiss.setting} {faiss.effort}" if faiss.setting else ""
        recall = f"recall@10 {faiss.recall:.3f} of exact search, on a sample of the images"
        stdout().print(f"{gallery.factory}{setting}: {recall}")


def _describe(gallery: Gallery) -> dict[str, Any]:
    changes, faiss = gallery.changes, gallery.faiss
    return {
        "index": str(gallery.place),
        "folder": str(gallery.folder),
        "images": len(gallery),
        "new": changes.new if changes is not None else len(gallery),
        "changed": changes.changed if changes is not None else 0,
        "gone": changes.gone if changes is not None else 0,
        "as_before": changes.same if changes is not None else 0,
        "search": gallery.factory or "exact",
        "effort": faiss.effort if faiss is not None else None,
        "recall_at_10": faiss.recall if faiss is not None else None,
        "skipped": gallery.skipped,
    }


def _check(trained: TrainedRun, as_json: bool) -> None:
    held, gone, changed = trained.check_index()
    if as_json:
        print_json({"index": str(held.place), "images": len(held), "gone": gone, "changed": changed})
    else:
        stdout().print(f"{len(held)} images, all files as they were written: {held.place}")
        for what, paths in (("gone", gone), ("changed", changed)):
            if paths:
                more = ", ..." if len(paths) > _SHOWN else ""
                stdout().print(f"{len(paths)} {what}: {printable(', '.join(paths[:_SHOWN]))}{more}")
    if gone or changed:
        say(f"{len(gone)} images gone and {len(changed)} changed since they were indexed; type: {held.again}")
        raise typer.Exit(1)


def query(
    run: RunFolder,
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE...", help="Images to look for.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 8,
    metric: Annotated[
        Metric, typer.Option(help="Distances of embeddings, or the run's learned metric.")
    ] = Metric.euclidean,
    shortlist: Annotated[
        int | None,
        typer.Option(help="With the learned metric: how many of the nearest by distance it re-ranks (default: all)."),
    ] = None,
    within: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Images of this class alone, a sub-folder of the indexed one.")
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(
            help="Answers within this distance, K at most; with --duplicates (there 0.1 by default), how near "
            "duplicates are."
        ),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="No IMAGE: groups of near-duplicates among the indexed images.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="The PNG to write (default RUN/query.png; with --json none).")
    ] = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an index: a table, and a picture."""
    from ..retrieval import check_file, load_run

    if bool(images) == duplicates:
        raise ConfigError(f"wanted images to look for, or --duplicates; type: pml-ext query {run} IMAGE")
    if duplicates and (picture or within or shortlist is not None or metric is not Metric.euclidean):
        raise ConfigError("--duplicates compares all indexed images; leave out all options but --radius")
    place = picture or (None if as_json else run / "query.png")
    if place is not None and not duplicates:
        check_file("--picture", place)
    trained = load_run(run, device.value, store=store)
    if duplicates:
        _duplicates(trained, radius, as_json)
        return
    answers = trained.query(images, k, None, metric.value, shortlist, within=within, radius=radius)
    if not as_json:
        rows = [
            [printable(answer.query), str(rank), printable(path), f"{distance:.4f}"]
            for answer in answers
            for rank, (path, distance) in enumerate(zip(answer.paths, answer.distances, strict=True), start=1)
        ]
        value = "distance" if metric is Metric.euclidean else "score"
        print_table(["query", "rank", "path", value], rows, right=[1, 3])
        for answer in answers:
            if radius is not None and not answer.paths:
                say(f"{printable(answer.query)}: no image within {radius:g} (--radius)")
    drawn = place is not None and _draw(place, trained, answers)
    if as_json:
        written = {"run": str(run), "metric": metric.value, "picture": str(place) if drawn else None}
        print_json([dataclasses.asdict(answer) | written for answer in answers])
    elif drawn:
        stdout().print(f"picture: {place}")


def _duplicates(trained: TrainedRun, radius: float | None, as_json: bool) -> None:
    from ..retrieval import RADIUS

    radius = RADIUS if radius is None else radius
    groups = trained.duplicates(radius)
    if as_json:
        print_json({"radius": radius, "groups": groups})
        return
    if groups:
        rows = [[str(number), printable(path)] for number, group in enumerate(groups, start=1) for path in group]
        print_table(["group", "path"], rows, right=[0])
    count = f"{len(groups)} group{'s' * (len(groups) != 1)} of {sum(map(len, groups))} images"
    stdout().print(f"{count} within {radius:g} of another (--radius)")


def _draw(place: Path, trained: TrainedRun, answers: list[Answer]) -> bool:
    """Write the picture; the answers are there, so whatever is wrong with it costs the picture alone."""
    from ..files import write_atomically

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        figure = trained.picture(answers)
        write_atomically(place, functools.partial(figure.savefig, format="png"))
    except Exception as error:
        say(f"warning: no picture: {one_line(error)}")
        return False
    return True

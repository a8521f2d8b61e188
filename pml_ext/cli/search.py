"""``pml-ext index`` and ``pml-ext query``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, Device, Metric, OnDevice, RunFolder, Workers
from .retrieve import StoreFolder, embedding

if TYPE_CHECKING:
    from ..retrieval import Answer, Gallery, TrainedRun

_SHOWN = 10  # images that are gone or changed, named one by one


def index(
    run: RunFolder,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="A folder of images, sub-folders included (default: the indexed one)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/collection).")
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
    effort: Annotated[
        int | None,
        typer.Option(
            help="How hard a faiss index searches: nprobe of IVF, efSearch of HNSW. By default it is doubled, from 1 "
            "and from 64, until recall@10 reaches 0.95 on a sample of 200 images."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Build nothing: read all of the index, and look for its images.")
    ] = False,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Index the images of a folder, to query them; again, take up what is new, changed and gone."""
    from ..errors import ConfigError
    from ..retrieval import load_run
    from .output import print_json

    if check:
        if folder is not None or factory or effort is not None:
            raise ConfigError("--check reads the index as it is; leave out FOLDER, --index and --effort")
        _check(load_run(run, device.value, store=store), out, as_json)
        return
    with embedding(run, folder, device, workers, store, out) as trained:
        if trained is None:
            return
        gallery = trained.index(folder, out, factory, effort)
    told = _tell_of(gallery, as_json)
    if as_json:
        print_json(told)


def _tell_of(gallery: Gallery, as_json: bool) -> dict[str, Any]:
    from .output import stdout

    faiss, images = gallery.faiss, len(gallery)
    if not as_json:
        stdout().print(f"{images} images indexed: {gallery.place}")
        if gallery.changes is not None:
            stdout().print(str(gallery.changes))
        if faiss is not None and faiss.recall is not None:
            setting = f" with {faiss.setting} {faiss.effort} (--effort)" if faiss.setting else ""
            stdout().print(
                f"{gallery.factory}{setting}: recall@10 {faiss.recall:.3f} of exact search, on a sample of the images"
            )
    changes = gallery.changes
    return {
        "index": str(gallery.place),
        "folder": str(gallery.folder),
        "images": images,
        "new": changes.new if changes is not None else images,
        "changed": changes.changed if changes is not None else 0,
        "gone": changes.gone if changes is not None else 0,
        "as_before": changes.same if changes is not None else 0,
        "search": gallery.factory or "exact",
        "effort": faiss.effort if faiss is not None else None,
        "recall_at_10": faiss.recall if faiss is not None else None,
        "skipped": gallery.skipped,
    }


def _check(trained: TrainedRun, out: Path | None, as_json: bool) -> None:
    from ..errors import printable
    from .output import print_json, stdout

    held, gone, changed = trained.check_index(out)
    if as_json:
        print_json({"index": str(held.place), "images": len(held), "gone": gone, "changed": changed})
    else:
        stdout().print(f"{len(held)} images, all files as they were written: {held.place}")
        for what, paths in (("gone", gone), ("changed", changed)):
            if paths:
                more = ", ..." if len(paths) > _SHOWN else ""
                stdout().print(f"{len(paths)} {what}: {printable(', '.join(paths[:_SHOWN]))}{more}")
    if gone or changed:
        _say(f"{len(gone)} images gone and {len(changed)} changed since they were indexed; type: {held.again}")
        raise typer.Exit(1)


def query(
    run: RunFolder,
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE...", help="Images to look for.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 8,
    gallery: Annotated[Path | None, typer.Option(help="The collection to ask (default RUN/collection).")] = None,
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
    beside: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run, its answers beside; repeatable.")
    ] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Find the nearest images of an index: a table, and a picture."""
    from ..errors import ConfigError
    from ..retrieval import check_file, load_run

    if duplicates:
        refused = {
            "IMAGE": images,
            "--shortlist": shortlist,
            "--effort": effort,
            "--within": within,
            "--picture": picture,
            "--beside": beside,
            "--metric": metric is not Metric.euclidean,
        }
        if given := [name for name, value in refused.items() if value]:
            raise ConfigError(f"--duplicates compares all indexed images; leave out {' and '.join(given)}")
        _duplicates(load_run(run, device.value), gallery, radius, as_json)
        return
    if not images:
        raise ConfigError(
            f"no image to look for; type: pml-ext query {run} IMAGE, or: pml-ext query {run} --duplicates"
        )
    place = picture or (None if as_json else run / "query.png")
    if place is not None:
        check_file("--picture", place)
    trained = load_run(run, device.value)
    asked = [(trained, trained.gallery(gallery))]
    asked += [(other, other.gallery()) for path in beside or () for other in [load_run(path, device.value)]]
    answers = [each.query(images, k, held, metric.value, shortlist, effort, within, radius) for each, held in asked]
    runs = [str(each.folder) for each, _ in asked]
    if not as_json:
        _show(runs, answers, metric)
        _tell_of_none(runs, answers, radius)
    drawn = place is not None and _draw(place, asked, answers, as_json)
    if as_json:
        _write_json(runs, answers, metric, str(place) if drawn else None)


def _show(runs: list[str], answers: list[list[Answer]], metric: Metric) -> None:
    """A table; of several runs, each query's answers of one run after another's."""
    from ..errors import printable
    from .output import print_table

    word = "distance" if metric is Metric.euclidean else "score"
    several = len(runs) > 1
    rows = [
        [printable(answer.query), *[printable(Path(run).name)] * several, str(rank), printable(path), f"{distance:.4f}"]
        for of_query in zip(*answers, strict=True)
        for run, answer in zip(runs, of_query, strict=True)
        for rank, (path, distance) in enumerate(zip(answer.paths, answer.distances, strict=True), start=1)
    ]
    columns = ["query", *["run"] * several, "rank", "path", word]
    print_table(columns, rows, right=[1 + several, 3 + several])


def _tell_of_none(runs: list[str], answers: list[list[Answer]], radius: float | None) -> None:
    """Says which queries have no row in the table, since no image is as near as was asked for."""
    from ..errors import printable

    for run, of_run in zip(runs, answers, strict=True):
        for answer in of_run:
            if radius is not None and not answer.paths:
                where = f" in {run}" if len(runs) > 1 else ""
                _say(f"{printable(answer.query)}: no image within {radius:g} (--radius){where}")


def _write_json(runs: list[str], answers: list[list[Answer]], metric: Metric, picture: str | None) -> None:
    from .output import print_json

    print_json(
        [
            {
                "query": answer.query,
                "run": run,
                "metric": metric.value,
                "query_class": answer.query_class,
                "paths": answer.paths,
                "distances": answer.distances,
                "classes": answer.classes,
                "ids": answer.ids,
                "picture": picture,
            }
            for of_query in zip(*answers, strict=True)
            for run, answer in zip(runs, of_query, strict=True)
        ]
    )


def _duplicates(trained: TrainedRun, gallery: Path | None, radius: float | None, as_json: bool) -> None:
    from ..errors import printable
    from ..retrieval import RADIUS
    from .output import print_json, print_table, stdout

    radius = RADIUS if radius is None else radius
    groups = trained.duplicates(radius, gallery)
    if as_json:
        print_json({"radius": radius, "groups": groups})
        return
    if groups:
        rows = [[str(number), printable(path)] for number, group in enumerate(groups, start=1) for path in group]
        print_table(["group", "path"], rows, right=[0])
    images = sum(map(len, groups))
    stdout().print(
        f"{len(groups)} group{'s' * (len(groups) != 1)} of {images} images within {radius:g} of another (--radius)"
    )


def _draw(place: Path, asked: list[tuple[TrainedRun, Gallery]], answers: list[list[Answer]], as_json: bool) -> bool:
    """Write the picture; the answers are there, so whatever is wrong with it costs the picture alone."""
    from ..files import write_atomically
    from ..retrieval import reason_of
    from .output import stdout

    (trained, held), *others = asked
    try:
        compared = [
            (each.folder.name, theirs, other.folder) for (each, other), theirs in zip(others, answers[1:], strict=True)
        ]
        place.parent.mkdir(parents=True, exist_ok=True)
        figure = trained.picture(answers[0], held, compared)
        write_atomically(place, functools.partial(figure.savefig, format="png"))
    except Exception as error:
        _say(f"warning: no picture: {reason_of(error)}")
        return False
    if not as_json:
        stdout().print(f"picture: {place}")
    return True


def _say(text: str) -> None:
    from .output import stderr

    stderr().print(f"pml-ext: {text}", soft_wrap=True)

"""``pml-ext data``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import AsJson, print_json, print_table, stdout

if TYPE_CHECKING:
    from ..data import About


def data(
    name: Annotated[str | None, typer.Argument(help="A published data set; all of them if left out.")] = None,
    root: Annotated[Path | None, typer.Option("--data", help="The folder that it lies in, or is to lie in.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing, and unpack it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a data set, its sources and its place, and check the files that are there; exit code 1 if one is not."""
    from ..data import get_archives, published_sets
    from ..errors import ConfigError, UnknownNameError, unknown

    known = published_sets()
    if name is None:
        if download or root is not None:
            raise ConfigError("--download and --data want the name of a data set; pml-ext data lists them")
        if as_json:
            print_json([_describe(about, about.place) for about in known.values()])
            return
        rows = []
        for about in known.values():
            size = f"{sum(each.megabytes for each in about.archives):,} MB"
            rows.append([about.name, about.title, size, "yes" if about.downloads else "by hand"])
        print_table(["name", "title", "size", "--download"], rows, right=[2])
        return
    if name not in known:
        raise UnknownNameError(unknown("published data set", name, known))
    about = known[name]
    place = about.place if root is None else root.expanduser()
    problem = _problem(about, root)
    if download and problem is not None:
        get_archives(about, place)
        problem = _problem(about, root)
    described = _describe(about, place) | {"problem": problem}
    print_json(described) if as_json else _print(about, described)
    if problem is not None:
        raise typer.Exit(1)


def _describe(about: About, place: Path) -> dict[str, Any]:
    archives = [
        {"name": each.name, "megabytes": each.megabytes, "checksum": each.checksum, "url": each.url}
        for each in about.archives
    ]
    splits = {part: {"images": count.images, "classes": count.classes} for part, count in about.counts.items()}
    described = {key: getattr(about, key) for key in ("name", "title", "page", "license", "note", "layout")}
    return described | {"place": str(place), "archives": archives, "splits": splits}


def _problem(about: About, root: Path | None) -> str | None:
    """Return what is wrong with the files that are there."""
    from ..data import builtin_datasets, check_archives
    from ..errors import DataError

    try:
        check_archives(about, root)
        builtin_datasets()[about.name](about.place if root is None else root)  # with a folder, none downloads
    except DataError as error:
        return str(error)
    return None


def _print(about: About, described: dict[str, Any]) -> None:
    labels = {"described at": "page", "license": "license", "goes into": "place", "as": "layout"}
    lines = [f"{about.name}: {about.title}", *(f"{label:12}  {described[key]}" for label, key in labels.items())]
    stdout().print("\n".join([*lines, *([about.note] if about.note else []), ""]))
    rows = [[each.name, f"{each.megabytes:,} MB", each.checksum, each.url or "by hand"] for each in about.archives]
    print_table(["file", "size", "checksum", "address"], rows, right=[1])
    counts = [
        [part, "" if count.images is None else f"{count.images:,}", f"{count.classes:,}"]
        for part, count in about.counts.items()
    ]
    print_table(["split", "images", "classes"], counts, right=[1, 2])
    problem = described["problem"]
    stdout().print("complete: lists, files and counts are as published" if problem is None else problem)
    if problem is not None and about.downloads:
        stdout().print(f"pml-ext data {about.name} --download fetches it")

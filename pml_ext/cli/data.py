"""``pml-ext data``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..data import About


def data(
    name: Annotated[str | None, typer.Argument(help="A published data set; all of them if left out.")] = None,
    root: Annotated[Path | None, typer.Option("--data", help="The folder that it lies in, or is to lie in.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing, and unpack it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Say what a data set is, where to get it and where to put it; check what is there, exit code 1 if it is not."""
    from ..data import published_sets
    from ..errors import ConfigError, UnknownNameError, unknown
    from .output import print_json, print_table

    known = published_sets()
    if name is None:
        if download or root is not None:
            raise ConfigError("--download and --data want the name of a data set; pml-ext data lists them")
        if as_json:
            print_json([_described(about, None) for about in known.values()])
        else:
            rows = [[about.name, about.title, f"{_megabytes(about):,} MB", _fetched(about)] for about in known.values()]
            print_table(["name", "title", "size", "--download"], rows, right=[2])
        return
    if name not in known:
        raise UnknownNameError(unknown("published data set", name, known))
    about = known[name]
    if download:
        _get(about, root)
    described = _described(about, root) | _state(about, root)
    if as_json:
        print_json(described)
    else:
        _show(about, described)
    if described["problem"] is not None:
        raise typer.Exit(1)


def _get(about: About, root: Path | None) -> None:
    from ..data import get_archives

    place = about.place if root is None else root.expanduser()
    if _state(about, root)["problem"] is None:
        return
    get_archives(about, place)


def _described(about: About, root: Path | None) -> dict[str, Any]:
    return {
        "name": about.name,
        "title": about.title,
        "page": about.page,
        "license": about.license,
        "note": about.note,
        "place": str(about.place if root is None else root.expanduser()),
        "layout": about.layout,
        "archives": [
            {"name": each.name, "megabytes": each.megabytes, "checksum": each.checksum, "url": each.url}
            for each in about.archives
        ],
        "splits": {part: {"images": count.images, "classes": count.classes} for part, count in about.counts.items()},
    }


def _state(about: About, root: Path | None) -> dict[str, Any]:
    """What is wrong with the files that are there; None where nothing is."""
    from ..data import builtin_datasets, check_archives
    from ..errors import DataError

    try:
        check_archives(about, root)
        builtin_datasets()[about.name](about.place if root is None else root)  # with a folder, none downloads
    except DataError as error:
        return {"problem": str(error)}
    return {"problem": None}


def _show(about: About, described: dict[str, Any]) -> None:
    from .output import print_table, stdout

    console = stdout()
    console.print(f"{about.name}: {about.title}")
    console.print(f"described at  {about.page}")
    console.print(f"license       {about.license}")
    console.print(f"goes into     {described['place']}")
    console.print(f"as            {about.layout}")
    if about.note:
        console.print(about.note)
    console.print()
    rows = [[each.name, f"{each.megabytes:,} MB", each.checksum, each.url or "by hand"] for each in about.archives]
    print_table(["file", "size", "checksum", "address"], rows, right=[1])
    counts = [
        [part, f"{count.images:,}" if count.images is not None else "", f"{count.classes:,}"]
        for part, count in about.counts.items()
    ]
    print_table(["split", "images", "classes"], counts, right=[1, 2])
    problem = described["problem"]
    console.print("complete: lists, files and counts are as published" if problem is None else problem)
    if problem is not None and about.downloads:
        console.print(f"pml-ext data {about.name} --download fetches it")


def _megabytes(about: About) -> int:
    return sum(archive.megabytes for archive in about.archives)


def _fetched(about: About) -> str:
    return "yes" if about.downloads else "by hand"

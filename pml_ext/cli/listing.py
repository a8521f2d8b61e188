"""``pml-ext list``, ``show`` and ``data``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from typer import Argument, Exit, Option

from ..errors import ConfigError, DataError, PmlExtError, UnknownNameError, unknown
from .options import AsJson
from .output import print_json, print_result, print_table, stdout

if TYPE_CHECKING:
    from ..data import DatasetInfo

WIDTH = 100  # characters per line of the short list
Kind = Literal["losses", "miners", "regularizers", "distances", "samplers", "reducers"]
What = Literal[Kind, "recipes", "tables", "pipelines", "datasets", "trunks", "trackers", "stores"]


def list_names(
    what: Annotated[What | None, Argument(help="The kind to list (default: losses and recipes).")] = None,
    as_json: AsJson = False,
) -> None:
    """List losses, recipes, data sets and more.

    A recipe is a TOML file that describes a training. A table is a table or figure of a paper; its entry has recipes
    on the paper's data and on small data, or the reason why there are none, and says whether the README has results.
    A pipeline is a partial recipe for preprocessing or a pretrained trunk. A trunk is the backbone, which turns an
    image into features; the embedder turns these into the embedding. A tracker records a run's numbers while it
    trains. A store is a database that searches an index. --json without a kind lists everything.
    """
    kinds = [what] if what else get_args(What) if as_json else ["losses", "recipes"]
    listed = {each: _entries(each) for each in kinds}
    if as_json:
        print_json(listed if what is None else listed[what])
    elif what == "tables":
        rows = []
        for entry in listed["tables"]:
            full, small = ("\n".join(entry["recipes"][scale]) for scale in ("full", "small"))
            done = "yes" if entry["measured"] else ""
            rows.append([entry["name"], entry["title"], full or entry["reason"], small, done])
        print_table(["table", "title", "recipe, or why there is none", "small", "README"], rows)
    elif what is not None:
        columns = ["name", "class", "from", "summary"]
        print_table(columns, [[entry[column] for column in columns] for entry in listed[what]])
    else:
        for name, entries in listed.items():
            print_table([name, ""], [[entry["name"], entry["summary"]] for entry in entries], width=WIDTH)
            stdout().print()
        more = ", ".join(name for name in get_args(What) if name not in listed)
        text = f"pml-ext show NAME describes one; pml-ext list KIND lists others, KIND being one of {more}"
        stdout().print(textwrap.fill(text, WIDTH), soft_wrap=True)


def _entries(what: str) -> list[dict[str, Any]]:
    from .. import registry

    if what in get_args(Kind):
        return [
            _entry(registry.short_name(each), each.plugin, each.one_line, each.class_name)
            for each in registry.components("loss" if what == "losses" else what[:-1])
        ]
    if what == "tables":
        from ..recipe import tables_of_papers as tables

        return [each | _entry(each["name"], each["paper"], each["title"]) for each in tables()]
    if what == "recipes":
        return [_entry(name, name.partition("/")[0], _recipe_summary(name)) for name in registry.recipes()]
    if what == "pipelines":
        from ..recipe import pipelines

        files = pipelines().items()
        return [_entry(name, "pml_ext", file.read_text("utf-8").partition("\n")[0][2:]) for name, file in files]
    factories = registry.factories("data set" if what == "datasets" else what[:-1])
    entries = [_factory(name, each) for name, each in factories.items()]
    if what == "datasets":
        from ..data import PATH_FACTORIES

        entries += [_factory(wanted.partition(",")[0], each) for each, wanted in PATH_FACTORIES.values()]
    if what == "trunks":
        from ..networks.trunks import TIMM, timm_trunk

        entries.append(_factory(f"{TIMM}NAME", timm_trunk))
    return entries


def _entry(name: str, origin: str, summary: str, class_name: str = "") -> dict[str, Any]:
    return {"name": name, "class": class_name, "from": origin, "summary": summary}


def _factory(name: str, factory: Any) -> dict[str, Any]:
    return _entry(name, factory.__module__.partition(".")[0], _summary(factory))


def _summary(documented: Any) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _recipe_summary(name: str) -> str:
    from ..recipe import read_tables

    try:
        return str(read_tables(name).get("description", ""))
    except PmlExtError as error:
        return f"broken: {error}"


def show(
    name: Annotated[
        str, Argument(help="A loss, miner, ..., recipe or .toml file, table of a paper (cbml/7), data set or trunk.")
    ],
    kind: Annotated[str | None, Option(help="loss, ..., recipe, table; where several share the name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a loss, recipe or data set.

    For a loss or another component: equation, settings with defaults, paper, recipes. For a recipe: all settings with
    their origin. For a table of a paper: the table as printed.
    """
    from .description import describe

    described = describe(name, kind)
    if as_json:
        print_json(described)
        return
    console = stdout()
    for index, item in enumerate(described):
        of = f", {item['class']}" if item["class"] else ""
        if index:
            console.print()
        console.print(f"{item['name']}  ({item['kind']}{of})")
        if item["text"]:
            console.print("\n" + item["text"])
        if item.get("table", {}).get("rows"):
            console.print()
            print_table(item["table"]["columns"], item["table"]["rows"])
        if item["settings"]:
            console.print()
            columns = {"setting": "name", "value" if item["kind"] == "recipe" else "default": "default"}
            columns |= {"origin": "origin"} if any(each.get("origin") for each in item["settings"]) else {}
            print_table([*columns], [[each[key] for key in columns.values()] for each in item["settings"]])
        for label in ("capabilities", "paper", "recipes"):
            if value := item[label]:
                console.print(f"\n{label}: {value if isinstance(value, str) else ', '.join(value)}")


def data(
    name: Annotated[str | None, Argument(help="A published data set (default: list all).")] = None,
    root: Annotated[Path | None, Option("--data", help="Its folder (default: as pml-ext data NAME prints).")] = None,
    download: Annotated[bool, Option("--download", help="Download missing archives, and unpack them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe, check and download a data set.

    Prints sources, license and expected files, and checks the files that are there. Exit code 1 if files are missing or
    damaged.
    """
    from ..data import get_archives, published_sets

    known = published_sets()
    if name is None and (download or root is not None):
        raise ConfigError("--download and --data want the name of a data set; pml-ext data lists them")
    if name is None:
        rows = []
        for about in known.values():
            size = f"{sum(each.megabytes for each in about.archives):,} MB"
            rows.append([about.name, about.title, size, "yes" if about.downloads else "by hand"])
        described = [_describe(about, about.place) for about in known.values()]
        print_result(as_json, described, columns=["name", "title", "size", "--download"], rows=rows, right=[2])
        return
    if name not in known:
        raise UnknownNameError(unknown("published data set", name, known))
    about = known[name]
    place = about.place if root is None else root.expanduser()
    problem = _problem(about, place)
    if download and problem is not None:
        get_archives(about, place)
        problem = _problem(about, place)
    found = _describe(about, place) | {"problem": problem}
    print_json(found) if as_json else _print(about, found)
    if problem is not None:
        raise Exit(1)


def _describe(about: DatasetInfo, place: Path) -> dict[str, Any]:
    archives = [{k: v for k, v in each._asdict().items() if k != "unpack"} for each in about.archives]
    splits = {part: count._asdict() for part, count in about.counts.items()}
    described = {key: getattr(about, key) for key in ("name", "title", "page", "license", "note", "layout")}
    return described | {"place": str(place), "archives": archives, "splits": splits}


def _problem(about: DatasetInfo, place: Path) -> str | None:
    """Return the first problem of the files in a data set's folder; None if it is complete."""
    from ..data import builtin_datasets, check_archives

    try:
        check_archives(about, place)
        builtin_datasets()[about.name](place)  # does not download if a folder is given
    except DataError as error:
        return str(error)
    return None


def _print(about: DatasetInfo, described: dict[str, Any]) -> None:
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

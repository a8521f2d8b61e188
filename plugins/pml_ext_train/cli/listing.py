"""``pml-ext list``, ``show`` and ``data``."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from typer import Argument, Exit, Option

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError, PmlExtError, UnknownNameError, unknown

from ..recipe import pipelines, read_tables, tables_of_papers
from .description import describe, documentation
from .options import AsJson
from .output import print_json, print_result, print_table, stdout

if TYPE_CHECKING:
    from ..data import DatasetInfo

WIDTH = 100  # characters per line of the short list
Kind = Literal["losses", "miners", "regularizers", "distances", "samplers", "reducers"]
Other = Literal["recipes", "tables", "pipelines", "datasets", "transforms", "trunks", "metrics", "trackers", "stores"]
What = Literal[Kind, Other]


def list_names(
    what: Annotated[
        What | None, Argument(metavar="KIND", help="The kind to list (default: losses and recipes).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List losses, recipes, data sets and more.

    A recipe is a TOML file that describes a training. A table is a table or figure of a paper, listed with recipes
    for the paper's data and for small data (or why it has no recipe), and whether its results were measured.
    A pipeline is a partial recipe for preprocessing or a pretrained trunk. A trunk is the backbone, which turns an
    image into features; the embedder turns these into the embedding. A transform changes training images at random, in
    [data.augment]. A tracker records a run's numbers while it trains; a metric is computed afterwards. A store is a
    database that searches an index. --json without a kind lists everything.

    Examples:
        pml-ext list
        pml-ext list miners
    """
    if as_json and what is None:
        print_json({kind: _entries(kind) for kind in get_args(What)})
    elif as_json:
        print_json(_entries(what))
    elif what is None:
        _print_short_list()
    elif what == "tables":
        _print_tables_of_papers(_entries(what))
    else:
        columns = ["name", "class", "from", "summary"]
        rows = [[entry[column] for column in columns] for entry in _entries(what)]
        print_table(columns, rows)


def _print_short_list() -> None:
    """Write losses and recipes, and how to list others."""
    kinds = ("losses", "recipes")
    for kind in kinds:
        print_table([kind, ""], ([entry["name"], entry["summary"]] for entry in _entries(kind)), width=WIDTH)
        stdout().print()
    others = ", ".join(kind for kind in get_args(What) if kind not in kinds)
    stdout().print(
        textwrap.fill(
            f"pml-ext show NAME describes one; pml-ext list KIND lists others. KIND is one of {others}", WIDTH
        ),
        soft_wrap=True,
    )


def _print_tables_of_papers(entries: list[dict[str, Any]]) -> None:
    rows = []
    for entry in entries:
        full = "\n".join(entry["recipes"]["full"]) or entry["reason"]
        small = "\n".join(entry["recipes"]["small"])
        rows.append([entry["name"], entry["title"], full, small, "yes" if entry["measured"] else ""])
    print_table(["table", "title", "recipe, or why it has no recipe", "small", "measured"], rows)


def _entries(what: str | None) -> list[dict[str, Any]]:
    """Return what ``pml-ext list WHAT --json`` writes."""
    lists: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "recipes": _recipes,
        "tables": _tables_of_papers,
        "pipelines": _pipelines,
        "datasets": _data_sets,
        "trunks": _trunks,
        "metrics": _metrics,
    }
    if what in lists:
        return lists[what]()
    if what in ("transforms", "trackers", "stores"):
        return _factories(what.removesuffix("s"))
    return _components("loss" if what == "losses" else str(what).removesuffix("s"))


def _components(kind: str) -> list[dict[str, Any]]:
    entries = []
    for component in registry.components(kind):
        name = registry.short_name(component)
        summary = _or_problem(lambda of=component: of.one_line)  # type: ignore[misc]
        entries.append(_entry(name, component.plugin, summary, component.class_name))
    return entries


def _recipes() -> list[dict[str, Any]]:
    entries = []
    for name in registry.recipes():
        summary = _or_problem(lambda of=name: str(read_tables(of).get("description", "")))  # type: ignore[misc]
        entries.append(_entry(name, name.partition("/")[0], summary))
    return entries


def _tables_of_papers() -> list[dict[str, Any]]:
    return [table | _entry(table["name"], table["paper"], table["title"]) for table in tables_of_papers()]


def _pipelines() -> list[dict[str, Any]]:
    first_lines = {name: file.read_text("utf-8").partition("\n")[0] for name, file in pipelines().items()}
    return [_entry(name, "pml_ext", line.removeprefix("# ")) for name, line in first_lines.items()]


def _data_sets() -> list[dict[str, Any]]:
    from ..data import PATH_FACTORIES

    entries = _factories("data set")
    for factory, wanted in PATH_FACTORIES.values():
        entries.append(_factory(wanted.partition(",")[0], factory))  # "folder:PATH"
    return entries


def _trunks() -> list[dict[str, Any]]:
    from ..networks.trunks import TIMM, timm_trunk

    return [*_factories("trunk"), _factory(f"{TIMM}NAME", timm_trunk)]


def _metrics() -> list[dict[str, Any]]:
    from pml_ext.evaluation.metrics import metrics_of

    entries = [_entry(metric.name, "pml_ext", metric.title) for metric in metrics_of() if metric.in_runs]
    return entries + _factories("metric")


def _factories(kind: str) -> list[dict[str, Any]]:
    return [_factory(name, factory, registry.find(kind, name)[0]) for name, factory in registry.values(kind).items()]


def _entry(name: str, origin: str, summary: str, class_name: str = "") -> dict[str, Any]:
    return {"name": name, "class": class_name, "from": origin, "summary": summary}


def _factory(name: str, factory: Any, plugin: str = "") -> dict[str, Any]:
    module = getattr(factory, "__module__", None) or plugin  # an object of a plugin may have none
    return _entry(name, str(module).partition(".")[0], documentation(factory).partition("\n")[0])


def _or_problem(summary: Callable[[], str]) -> str:
    try:
        return summary()
    except PmlExtError as error:
        return f"broken: {error}"


def show(
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="A loss, miner, ..., recipe or .toml file, table of a paper, data set, transform or trunk.",
        ),
    ],
    kind: Annotated[str | None, Option(help="loss, ..., recipe, table; needed if several share the name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a loss, recipe or data set.

    For a loss or another component: equation, settings with defaults, paper, recipes. For a recipe: all settings with
    their origin. For a table of a paper: the table as printed.

    Examples:
        pml-ext show cbml
        pml-ext show cbml/digits
    """
    described = describe(name, kind)
    if as_json:
        print_json(described)
        return
    for index, entry in enumerate(described):
        if index > 0:
            stdout().print()
        _print_description(entry)


def _print_description(entry: dict[str, Any]) -> None:
    console = stdout()
    class_name = f", {entry['class']}" if entry["class"] else ""
    console.print(f"{entry['name']}  ({entry['kind']}{class_name})")
    if entry["text"]:
        console.print("\n" + entry["text"])
    if entry.get("table", {}).get("rows"):
        console.print()
        print_table(entry["table"]["columns"], entry["table"]["rows"])
    if entry["settings"]:
        console.print()
        _print_settings(entry)
    texts = {label: entry[label] for label in ("capabilities", "paper", "recipes") if entry[label]}
    for label, value in texts.items():
        text = value if isinstance(value, str) else ", ".join(value)
        console.print("\n" + textwrap.fill(f"{label}: {text}", WIDTH))


def _print_settings(entry: dict[str, Any]) -> None:
    settings = entry["settings"]
    columns = {"setting": "name", "value" if entry["kind"] == "recipe" else "default": "default"}
    if any(setting.get("origin") for setting in settings):
        columns["origin"] = "origin"
    rows = [[setting[key] for key in columns.values()] for setting in settings]
    print_table(list(columns), rows)


def data(
    name: Annotated[str | None, Argument(metavar="NAME", help="A published data set (default: list all).")] = None,
    root: Annotated[Path | None, Option("--data", help="Its folder (default: as pml-ext data NAME prints).")] = None,
    download: Annotated[bool, Option("--download", help="Download missing archives, and unpack them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe, check and download a data set.

    Prints sources, license and expected files, and checks the files that are there. Exit code 1 if files are missing or
    damaged.

    Examples:
        pml-ext data
        pml-ext data cub --download
    """
    from ..data import get_archives, published_sets

    known = published_sets()
    if name is None:
        if download or root is not None:
            raise ConfigError("--download and --data need the name of a data set; pml-ext data lists them")
        _print_data_sets(list(known.values()), as_json)
        return
    if name not in known:
        raise UnknownNameError(unknown("published data set", name, known))
    about = known[name]
    place = about.place if root is None else root.expanduser()
    problem = _problem(about, place)
    if download and problem is not None:
        get_archives(about, place)
        problem = _problem(about, place)
    if as_json:
        print_json(_describe(about, place) | {"problem": problem})
    else:
        _print_data_set(about, place, problem)
    if problem is not None:
        raise Exit(1)


def _print_data_sets(data_sets: list[DatasetInfo], as_json: bool) -> None:
    rows = []
    for about in data_sets:
        megabytes = sum(archive.megabytes for archive in about.archives)
        download = "yes" if about.downloads else "by hand"
        rows.append([about.name, about.title, f"{megabytes:,} MB", download])
    described = [_describe(about, about.place) for about in data_sets]
    print_result(as_json, described, columns=["name", "title", "size", "--download"], rows=rows, right=[2])


def _describe(about: DatasetInfo, place: Path) -> dict[str, Any]:
    described = dataclasses.asdict(about)
    described["splits"] = described.pop("counts")
    return described | {"place": str(place)}


def _problem(about: DatasetInfo, place: Path) -> str | None:
    """Return the first problem of a data set's files, or None."""
    from ..data import builtin_datasets, check_archives

    try:
        check_archives(about, place)
        builtin_datasets()[about.name](place)  # does not download if a folder is given
    except DataError as error:
        return str(error)
    return None


def _print_data_set(about: DatasetInfo, place: Path, problem: str | None) -> None:
    lines = [
        f"{about.name}: {about.title}",
        f"described at  {about.page}",
        f"license       {about.license}",
        f"goes into     {place}",
        f"as            {about.layout}",
        about.note,
    ]
    stdout().print("\n".join(filter(None, lines)) + "\n")

    files = [
        [archive.name, f"{archive.megabytes:,} MB", archive.checksum, archive.url or "by hand"]
        for archive in about.archives
    ]
    print_table(["file", "size", "checksum", "address"], files, right=[1])

    splits = []
    for split, count in about.counts.items():
        images = "" if count.images is None else f"{count.images:,}"
        splits.append([split, images, f"{count.classes:,}"])
    print_table(["split", "images", "classes"], splits, right=[1, 2])

    stdout().print(problem or "complete: lists, files and counts are as published")
    if problem is not None and about.downloads:
        stdout().print(f"pml-ext data {about.name} --download fetches it")

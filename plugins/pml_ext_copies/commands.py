"""``pml-ext duplicates``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from typer import Argument, Option

from pml_ext.errors import ConfigError, DataError, counted, printable
from pml_ext.registry import service
from pml_ext_train.cli import AsJson, Exclude, StoreFolder, print_result, say, stderr
from pml_ext_train.data import (
    SYSTEM_FOLDER,
    FolderRules,
    is_run,
    is_system_folder,
    is_vector_file,
    list_folder,
    read_vectors,
)
from pml_ext_train.files import check_writable, file_stat, write_text
from pml_ext_train.retrieval import SearchedRun, SearchService

from .groups import KINDS, Duplicates
from .set_aside import SetAside, finish_moves, link_copies, move_back, move_copies

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 200  # rows of the table in a terminal


def duplicates(
    data: Annotated[
        Path,
        Argument(
            metavar="FOLDER|RUN|VECTORS",
            help="A folder of images, sub-folders included; a run, whose indexed images are compared; or a file "
            "of vectors.",
        ),
    ],
    against: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Find images that have copies in this folder, whose images are kept."),
    ] = None,
    radius: Annotated[
        float | None,
        Option(help="Maximum distance of near copies, 0 to 2 (default: chosen by altered copies of some images)."),
    ] = None,
    keep: Annotated[
        str,
        Option(
            metavar="RULE|FILE.csv",
            help="Which image of a group to keep: most-pixels, least-compressed, oldest, the images of a sub-folder, "
            "or a table that --csv or pml-ext browse has written.",
        ),
    ] = "most-pixels",
    kind: Annotated[
        list[str] | None,
        Option(help="Only copies of this kind: exact (bytes), same (pixels) or near; repeatable (default: all)."),
    ] = None,
    turned: Annotated[
        bool,
        Option(
            "--turned",
            help="Also find copies that are mirrored, turned by 90, 180 or 270 degrees, or captioned. Comparing takes "
            "about three times as long.",
        ),
    ] = False,
    by: Annotated[
        Literal["thumbnails", "embeddings"],
        Option(help="With a run: embeddings also compares neighbors by embedding, as --turned does, but sooner."),
    ] = "thumbnails",
    csv: Annotated[Path | None, Option("--csv", metavar="FILE", help="Write a table, a row for each image.")] = None,
    sheet: Annotated[Path | None, Option(metavar="FILE", help="Draw a contact sheet, a PNG file.")] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page with the pairs side by side.")] = None,
    link: Annotated[
        bool, Option("--link", help="Replace exact copies by hard links to the image to keep, on one device.")
    ] = False,
    move: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Move the copies of all groups to this folder; the images to keep stay."),
    ] = None,
    undo: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Move everything back that --move has moved to this folder."),
    ] = None,
    delete: Annotated[bool, Option("--delete", hidden=True)] = False,
    exclude: Exclude = None,
    store: StoreFolder = None,
    as_json: AsJson = False,
) -> None:
    """Find copies: equal files, equal pixels, and near copies. Nothing is deleted.

    Examples:
        pml-ext duplicates photographs
        pml-ext duplicates photographs --kind same --move aside
        pml-ext duplicates photographs --turned --html copies.html
    """
    of_files = (against, kind, turned, by != "thumbnails", link, move, sheet, html, keep != "most-pixels")
    if delete:
        raise ConfigError(
            "--delete: copies are never deleted; --move FOLDER moves them to a folder that you may delete"
        )
    if undo is not None:
        if any((*of_files, radius, csv, store, exclude)):
            raise ConfigError(
                f"--undo cannot be combined with other options; type: pml-ext duplicates {data} --undo {undo}"
            )
        _undo(data, undo, as_json)
        return
    for option, file in (("--csv", csv), ("--sheet", sheet), ("--html", html)):
        if file is not None:
            check_writable(option, file, file=True)
    if move is not None:
        if link:
            raise ConfigError("--link and --move exclude each other; use one of them")
        check_writable("--move", move)
    if kind and "near" not in kind and (turned or by == "embeddings"):
        raise ConfigError(f"{'--turned' if turned else '--by embeddings'} finds near copies only; add --kind near")
    table = Path(keep) if keep.lower().endswith(".csv") else None
    if table is not None and against is not None:
        raise ConfigError(f"--keep {keep}: with --against, the images of {against} are kept; leave out one of them")
    if table is not None and not table.is_file():
        raise ConfigError(f"--keep {keep}: no such file; name a table that --csv or pml-ext browse has written")
    source = _source_of(data, store, exclude)
    if move is not None and source.names is not None and _finish_moves(move, source.folder):
        source = _source_of(data, store, exclude)
    roots = [source.folder]
    noun = "image"
    if source.names is None:
        if any(of_files):
            raise ConfigError(f"{data} has no image files; leave out all options but --radius, --csv and --json")
        found = _of_vectors(source, radius)
        noun = "vector"
    else:
        old = None
        if against is not None:
            old = _source_of(against, None, exclude, "--against ")
            roots.append(old.folder)
        embeddings = _embeddings_of(source, against) if by == "embeddings" else None
        found = _of_files(source, old, radius, "most-pixels" if table else keep, kind, turned, embeddings)
        if table is not None:
            found = _keep_listed(found, table)
    summary = found.summary(noun)
    if csv is not None:
        write_text(csv, found.as_csv())
    if sheet is not None:
        from .pages import write_sheet

        write_sheet(found, sheet)
    if html is not None:
        from .pages import write_page

        title = f"Copies in {printable(str(data))}"
        if against is not None:
            title = f"Images of {printable(str(data))} with copies in {printable(str(against))}"
        write_page(found, html, title, summary)
    if found.skipped:
        first = printable(next(iter(found.skipped.values())))
        say(f"{counted(len(found.skipped), 'image')} not compared; the first: {first}")
    lines = [summary]
    if link or move is not None:
        lines += _set_aside(found, move, roots, data if source.run else None)
    columns, rows, right = _table(found, noun)
    if not as_json and len(rows) > _SHOWN:
        lines.insert(0, f"the first {_SHOWN} of {len(rows)} rows; --csv FILE and --json have all")
    if as_json:
        for line in lines[1:]:
            say(line)
    print_result(as_json, found.as_json(), *lines, columns=columns, rows=rows[:_SHOWN], right=right)


class _Source(NamedTuple):
    """The images of a folder or an index; ``names`` is None for vectors."""

    folder: Path
    names: Sequence[str] | None
    run: SearchedRun | None = None


def _source_of(data: Path, store: Path | None, exclude: Sequence[str] | None = None, option: str = "") -> _Source:
    run = _run_of(data, store)
    if exclude and (run is not None or not data.is_dir()):
        raise ConfigError(f"--exclude is for folders of images; leave it out for {data}")
    if run is not None:
        images = run.indexed_images()
        if not any(file_stat(images.folder / name) for name in images.paths):
            return _Source(images.folder, None, run)
        names = [path for path in images.paths if not any(map(is_system_folder, path.split("/")))]
        return _Source(images.folder, names, run)
    if store is not None:
        raise ConfigError(f"--store is for runs, and {data} is not a run; leave it out")
    if not data.is_dir() and is_vector_file(data):
        if option:
            raise ConfigError(f"{option}{data}: no image files; wanted a folder of images")
        return _Source(data, None)
    listing = list_folder(data, FolderRules.of(exclude))
    if listing.left_out:
        say(listing.left_out)
    skipped = [why for why in listing.others.values() if why.endswith(SYSTEM_FOLDER)]
    if skipped:
        say(f"skipped {counted(len(skipped), 'folder')}, the first {printable(skipped[0])}")
    if not listing.names:
        raise DataError(f"{option}{data}: no images found; their names must end in .jpg, .png or the like")
    return _Source(data, listing.names)


def _run_of(data: Path, store: Path | None = None) -> SearchedRun | None:
    if not data.is_dir() or not is_run(data, os.listdir(data)):
        return None
    search: SearchService = service("search", "pml-ext duplicates RUN")
    return search.load_run(data, "cpu", store=store)


def _of_vectors(source: _Source, radius: float | None) -> Duplicates:
    from torch import from_numpy
    from torch.nn.functional import normalize

    from .duplicates import find_equal_vectors

    if source.run is not None:
        images = source.run.indexed_images()
        return find_equal_vectors(images.paths, images.embeddings, radius)
    file = read_vectors(source.folder)
    return find_equal_vectors(file.ids.tolist(), normalize(from_numpy(file.embeddings).float()), radius)


def _of_files(
    source: _Source,
    old: _Source | None,
    radius: float | None,
    keep: str,
    kinds: Sequence[str] | None,
    turned: bool,
    embeddings: Tensor | None,
) -> Duplicates:
    from rich import progress

    from .duplicates import find_duplicates
    from .image_files import ImageFiles

    if old is not None:
        _check_apart(source.folder, old.folder)
    images = ImageFiles(source.folder, source.names or (), old and (old.folder, old.names or ()))
    console = stderr()
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("read", total=len(images))

        def listener(done: int) -> None:
            bar.update(task, completed=done)

        return find_duplicates(images, radius, keep, kinds or KINDS, listener, turned, embeddings)


def _embeddings_of(source: _Source, against: Path | None) -> Tensor:
    if source.run is None:
        raise ConfigError(f"--by embeddings: {source.folder} is not a run; name the folder of a run, or leave out --by")
    if against is not None:
        raise ConfigError(f"--by embeddings compares the images of one run; leave out --against {against}")
    images = source.run.indexed_images()
    rows = {path: row for row, path in enumerate(images.paths)}
    return images.embeddings[[rows[name] for name in source.names or ()]]


def _keep_listed(found: Duplicates, table: Path) -> Duplicates:
    from .choices import keep_listed

    chosen = keep_listed(found, table)
    whole = sum(not group.others for group in chosen.groups)
    if whole:
        say(f"{counted(whole, 'group')} unchanged: {table} keeps all of their images")
    return chosen


def _check_apart(folder: Path, other: Path) -> None:
    first, second = folder.resolve(), other.resolve()
    if first.is_relative_to(second) or second.is_relative_to(first):
        raise ConfigError(f"--against {other}: it shares images with {folder}; name two separate folders")


def _set_aside(found: Duplicates, move: Path | None, roots: Sequence[Path], run: Path | None) -> list[str]:
    if move is None:
        done = link_copies(found, roots)
        lines = [f"{counted(done.files, 'file')} replaced by hard links to equal files: {done.space:,} bytes freed"]
    else:
        done = move_copies(found, move, roots)
        lines = [f"{counted(done.files, 'image')} moved to {printable(str(move))}: {done.space:,} bytes"]
        if done.companions:
            lines[0] += f", with {counted(done.companions, 'file')} of the same name"
    lines += _left(done)
    if run is not None and move is not None and done.files:
        lines.append(f"the index still lists the moved images; type: pml-ext index {run}")
    return lines


def _finish_moves(move: Path, root: Path) -> bool:
    """Continue an interrupted move; return whether it moved images."""
    done = finish_moves(move, [root])
    if done.files or done.left:
        say("; ".join([f"continued an interrupted --move: {counted(done.files, 'image')} moved", *_left(done)]))
    return done.files > 0


def _undo(data: Path, folder: Path, as_json: bool) -> None:
    run = _run_of(data)
    root = data if run is None else run.indexed_images().folder
    done = move_back(folder, root)
    lines = [f"{counted(done.files, 'image')} moved back to {printable(str(root))}", *_left(done)]
    print_result(as_json, {"moved_back": done.files, "left": done.left}, *lines)


def _left(done: SetAside) -> list[str]:
    if not done.left:
        return []
    return [f"{counted(len(done.left), 'file')} skipped; the first: {printable(done.left[0])}"]


def _table(found: Duplicates, noun: str) -> tuple[list[str], list[list[str]], list[int]]:
    rows = []
    for number, group in enumerate(found.groups, start=1):
        for image in group.images:
            distance = f"{image.distance:.3f}"
            if group.keeps(image):
                distance = "first" if noun == "vector" else "keep"
            pixels = "" if image.width is None else f"{image.width} x {image.height}"
            size = "" if image.bytes is None else f"{image.bytes:,}"
            rows.append([str(number), group.about(image), distance, pixels, size, printable(image.path)])
    if not rows:
        return [], [], []
    if noun == "vector":
        return ["group", "distance", "id"], [[row[0], row[2], row[5]] for row in rows], [0, 1]
    return ["group", "copies", "distance", "pixels", "bytes", "path"], rows, [0, 2, 3, 4]

"""``pml-ext enroll``."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pml_ext.errors import ConfigError, counted, printable
from pml_ext_train.cli import AsJson, ComparedBy, OnDevice, Progress, StoreFolder, print_result, say

from .loading import RunOrImages, say_doubts, searched_run

if TYPE_CHECKING:
    from ..open_set.class_changes import ClassChange
    from ..open_set.enrolment import Enrolment


def enroll(
    run: RunOrImages,
    photographs: Annotated[list[Path] | None, Argument(metavar="PHOTO", help="Images, or folders of them.")] = None,
    name: Annotated[
        str | None, Option("--as", metavar="NAME", help="The class: a sub-folder of the indexed folder.")
    ] = None,
    rename: Annotated[
        tuple[str, str] | None, Option("--rename", metavar="OLD NEW", help="Give a class another name.")
    ] = None,
    join: Annotated[
        tuple[str, str] | None,
        Option("--join", metavar="A B", help="Move the photographs of class A to class B, whose name stays."),
    ] = None,
    remove: Annotated[
        str | None,
        Option("--remove", metavar="NAME", help="Move a class to a hidden sub-folder; nothing is deleted."),
    ] = None,
    undo: Annotated[
        int | None, Option("--undo", metavar="NUMBER", help="Undo a change, by the number that it printed.")
    ] = None,
    by: ComparedBy = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Add photographs of an individual to the index, or rename, join and remove individuals, without training.

    Photographs are copied into the indexed folder, with their raw data, edits (.xmp, .aae) and films, and the index is
    updated. Photographs that are there already are not copied again.

    Examples:
        pml-ext enroll runs/whales new.jpg --as Zoe
        pml-ext enroll runs/whales one.jpg two.jpg --as Zoe
        pml-ext enroll runs/whales --rename Zoe Zoë
        pml-ext enroll runs/whales --join "Zoe 2" Zoe
        pml-ext enroll runs/whales --remove Zoe
    """
    from ..open_set import class_changes
    from ..open_set.calibration import is_out_of_date

    changes: dict[class_changes.Option, tuple[str, ...] | None] = {
        "--rename": rename,
        "--join": join,
        "--remove": None if remove is None else (remove,),
    }
    typed = [(option, names) for option, names in changes.items() if names is not None]
    if len(typed) + bool(photographs or name is not None) + (undo is not None) > 1:
        raise ConfigError("--rename, --join, --remove, --undo and PHOTO --as NAME exclude each other; type one of them")
    if not typed and name is None and undo is None:
        raise ConfigError(f"no class is named; type: pml-ext enroll {shlex.quote(str(run))} PHOTO --as NAME")
    with Progress() as bar:
        trained = searched_run(run, device, bar, store, by)
        index = trained.search_index
        done: Enrolment | ClassChange
        if name is not None:
            done = trained.enroll(photographs or [], name)
        elif undo is not None:
            done = class_changes.undo_change(index, undo)
        else:
            ((option, names),) = typed
            done = class_changes.change_class(index, option, *names)
    say_doubts(trained)
    if is_out_of_date(index.place, index.collection.identity, trained.indexed_images()):
        say(f"the threshold of known or new is out of date; type: {index.collection.command_of('identify')}")
    about = dataclasses.asdict(done)
    if isinstance(done, class_changes.ClassChange):
        text = _changed(done)
    else:
        text = _enrolled(done)
        about["changes"] = None if done.changes is None else done.changes._asdict()
    lines = [f"{text}; {done.images} images indexed", done.undo]
    print_result(as_json, about, *filter(None, lines))


def _enrolled(done: Enrolment) -> str:
    text = f"{counted(len(done.copied), 'photograph')} of {printable(done.name)} enrolled"
    if done.there:
        text += f", {len(done.there)} there already"
    if done.companions:
        text += f", with {counted(len(done.companions), 'file')} of the same name"
    return f"{text}: {done.folder}"


def _changed(done: ClassChange) -> str:
    text = counted(done.photographs, "photograph")
    if done.old:
        text += f" of {printable(done.old)}"
    text += f" moved to {printable(done.folder)}"
    if done.missing:
        text += f", {counted(done.missing, 'file')} not found"
    return text

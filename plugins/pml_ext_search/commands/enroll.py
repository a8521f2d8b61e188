"""``pml-ext enroll``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pml_ext.errors import counted, printable
from pml_ext_train.cli import AsJson, ComparedBy, OnDevice, Progress, StoreFolder, print_result

from .loading import RunOrImages, say_doubts, searched_run


def enroll(
    run: RunOrImages,
    photographs: Annotated[list[Path], Argument(metavar="PHOTO", help="Images, or folders of them.")],
    name: Annotated[str, Option("--as", metavar="NAME", help="The class: a sub-folder of the indexed folder.")],
    by: ComparedBy = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Add photographs of an individual to the index, without training.

    They are copied into the indexed folder, and the index is updated. Photographs that are there already are not copied
    again.

    Examples:
        pml-ext enroll runs/whales new.jpg --as Zoe
        pml-ext enroll runs/whales one.jpg two.jpg --as Zoe
    """
    with Progress() as bar:
        trained = searched_run(run, device, bar, store, by)
        done = trained.enroll(photographs, name)
    say_doubts(trained)
    text = f"{counted(len(done.copied), 'photograph')} of {printable(name)} enrolled"
    if done.there:
        text += f", {len(done.there)} there already"
    lines = [f"{text}: {done.folder}; {done.images} images indexed"]
    if done.copied:
        lines.append(done.undo)
    about = dataclasses.asdict(done)
    about["changes"] = None if done.changes is None else done.changes._asdict()
    print_result(as_json, about, *lines)

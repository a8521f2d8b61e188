"""``pml-ext browse``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device, OnDevice, RunFolder


def browse(
    run: RunFolder,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="A folder of images (default: the one that RUN/collection has indexed)."
        ),
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run, its answers to the same photographs beside.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The page's port on this machine; 0 for any that is free.")
    ] = 7860,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    device: OnDevice = Device.auto,
) -> None:
    """Look at a folder's photographs as a run sees them: a page on this machine, until Ctrl-C.

    Drop a photograph, or click one, to see its nearest; clusters; a map of the embeddings; right and wrong answers.
    """
    from ..browse import open_collections
    from ..browse.server import listening, serve
    from ..lazy import check_there
    from .output import stderr, stdout

    check_there(("starlette", "uvicorn", "python_multipart"), "browse", "pml-ext browse")  # before a folder is indexed
    with listening(port) as bound:
        runs = [run] if beside is None else [run, beside]
        collections = open_collections(runs, folder, device.value, lambda text: stderr().print(text, soft_wrap=True))
        serve(collections, bound, opened, lambda address: stdout().print(f"{address}   (Ctrl-C ends)"))
    stderr().print("pml-ext: the page is closed")

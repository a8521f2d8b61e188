"""``pml-ext browse``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pml_ext.errors import ConfigError
from pml_ext.registry import service
from pml_ext_train.cli import Exclude, OnDevice, Progress, RunFolder, stderr, stdout
from pml_ext_train.retrieval import SearchService


def browse(
    run: RunFolder,
    folder: Annotated[
        Path | None, Argument(metavar="FOLDER", help="A folder of images (default: the indexed one).")
    ] = None,
    beside: Annotated[Path | None, Option(metavar="RUN", help="Another run to show side by side.")] = None,
    store: Annotated[str | None, Option(metavar="STORE", help="Search in a store that index --to filled.")] = None,
    port: Annotated[int, Option(min=0, max=65535, help="The page's port; 0 for any free one.")] = 7860,
    opened: Annotated[bool, Option("--open/--no-open", help="Open the page in the browser.")] = True,
    exclude: Exclude = None,
    device: OnDevice = "auto",
) -> None:
    """Browse a folder in a local web page, until Ctrl-C.

    Drop or click a photograph to see its nearest images. The page also shows clusters, a map of the embeddings, and
    correct and wrong answers.

    Examples:
        pml-ext browse photographs
        pml-ext browse runs/birds --port 8001
    """
    from .collection import open_collections
    from .server import listening, serve

    if store is not None and (folder is not None or beside is not None):
        raise ConfigError("--store has the images of RUN's index; leave out FOLDER and --beside")
    with listening(port) as bound:
        search: SearchService = service("search", "pml-ext browse")
        with Progress() as bar:
            run, images = search.run_of(run, device, bar, exclude)
            if images is not None and folder is None and beside is None and store is None:
                # new photographs too: a class is known or new by the index
                search.load_run(run, device, exclude=exclude).index(images, retry_damaged=False)
        if images is not None and folder is None and beside is not None:
            folder = images
        if exclude and images is None and folder is None:
            raise ConfigError(f"--exclude is for folders; name one, or type: pml-ext index {run} --exclude PATTERN")
        runs = [run] if beside is None else [run, beside]
        collections = open_collections(
            runs, folder, device, lambda text: stderr().print(text, soft_wrap=True), store, exclude
        )
        serve(collections, bound, opened, lambda address: stdout().print(f"{address}   (Ctrl-C ends)"))
    stderr().print("pml-ext: the page is closed")

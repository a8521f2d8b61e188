"""``pml-ext embed``, ``cluster`` and ``export``; what :mod:`.search` shares with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .train import Device

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
ImageFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, sub-folders included.")]
OnDevice = Annotated[Device, typer.Option(help="Where to compute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


class Metric(StrEnum):
    """What distances are."""

    euclidean = "euclidean"
    learned = "learned"


@contextmanager
def skipped_files() -> Iterator[None]:
    """Names the files that are left out, on stderr, and counts them."""
    from ..retrieval import heard
    from .output import stderr

    with heard() as texts:
        try:
            yield
        finally:
            for text in texts:
                stderr().print(f"pml-ext: {text}", soft_wrap=True)
            if texts:
                stderr().print(f"pml-ext: {len(texts)} file{'s' * (len(texts) > 1)} skipped", soft_wrap=True)


def embed(
    run: RunFolder,
    folder: ImageFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz file to write: embeddings, paths, classes.")],
    device: OnDevice = Device.auto,
) -> None:
    """Embed the images of a folder with a trained run."""
    from ..errors import ConfigError
    from ..retrieval import check_file, load_run, save_embeddings
    from .output import stdout

    if out.suffix != ".npz":
        raise ConfigError(f"-o {out}: wanted a file that ends in .npz")
    check_file("-o", out)
    trained = load_run(run, device.value)
    with skipped_files():
        embedded = trained.embed_folder(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_embeddings(embedded, out)
    stdout().print(f"{len(embedded.paths)} embeddings of size {embedded.embeddings.shape[1]}: {out}")


def cluster(
    run: RunFolder,
    folder: ImageFolder,
    clusters: Annotated[int, typer.Option(help="How many clusters.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Sort the images of a folder into clusters: a CSV, and a contact sheet for each."""
    from ..retrieval import load_run, printable
    from .output import print_json, print_table, stdout

    trained = load_run(run, device.value)
    with skipped_files():
        numbers = trained.cluster(folder, clusters, out)
    if as_json:
        print_json(numbers)
        return
    members: dict[int, list[str]] = {}
    for path, number in numbers.items():
        members.setdefault(number, []).append(path)
    rows = [
        [str(number), str(len(paths)), printable(", ".join(paths[:3]))] for number, paths in sorted(members.items())
    ]
    print_table(["cluster", "images", "for example"], rows, right=[0, 1])
    stdout().print(f"table and contact sheets: {out or run / 'clusters'}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
) -> None:
    """Write the network as model.safetensors and preprocess.json, for programs without pml_ext."""
    from ..retrieval import load_run
    from .output import stdout

    place = load_run(run, "cpu").export(out)
    stdout().print(f"model.safetensors and preprocess.json: {place}")

"""``pml-ext export``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from ..files import read_json
from .options import AsJson, RunFolder
from .output import print_result


def export(
    run: RunFolder,
    out: Annotated[Path, Option("--out", "-o", help="The folder to write.")],
    onnx: Annotated[bool, Option("--onnx", help="Also write model.onnx, for batches of any size.")] = False,
    by: Annotated[
        Literal["embeddings", "features"],
        Option(help="The output of the network: embeddings, or features of the trunk, before the head."),
    ] = "embeddings",
    as_json: AsJson = False,
) -> None:
    """Export the network: safetensors, ONNX, model card.

    Examples:
        pml-ext export runs/digits --out exported
        pml-ext export runs/digits --out exported --onnx
    """
    from pml_ext.distributed.allocator import keep_freed_memory

    from ..results.trained_network import LoadedRun

    keep_freed_memory()
    place = LoadedRun(run, "cpu").export(out, onnx, by)
    about = read_json(place / "preprocess.json")
    files = [about[key] for key in ("weights", "onnx") if key in about]
    lines = [
        f"{file['file']}: embeddings differ from the network's by {file['largest_difference']:.1e} at most"
        for file in files[1:]
    ]
    lines.append(f"{', '.join(file['file'] for file in files)}, preprocess.json and README.md: {place}")
    print_result(as_json, {"folder": str(place), "files": files}, *lines)

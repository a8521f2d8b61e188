"""Export of a run's network."""

import contextlib
import copy
import functools
import html
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, needs_extra, one_line, shortened
from pml_ext.evaluation.metrics import title_of
from pml_ext.lazy import require_packages

from ..files import (
    SUMS,
    DamagedError,
    check_writable,
    is_unchanged,
    read_json,
    read_sums,
    recover,
    replace_file,
    sha256_of,
    write_atomically,
    write_sums,
)
from ..networks import HEAD, By, Network, Preprocessing, VectorInput, is_file, is_pretrained, merged_lora
from ..recipe import Freeze, Recipe, cut_of, frozen_patterns
from ..records import METRICS, read_metrics
from .measurements import Measurement, measurements_of, shown_values

WEIGHTS = "model.safetensors"
ONNX = "model.onnx"
ABOUT = "preprocess.json"
CARD = "README.md"
MOST = 1e-4  # largest accepted absolute difference of an embedding's component
COMPARED = 100  # noise images on which the graph is compared with the network


class Normalized(nn.Module):
    """Network from images ``[B, C, S, S]`` to embeddings of length 1, ``[B, D]``."""

    def __init__(self, trunk: nn.Module, embedder: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.embedder = embedder

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings, ``[B, D]``."""
        return nn.functional.normalize(self.embedder(self.trunk(images)))


def write_export(
    folder: Path, run: Path, recipe: Recipe, network: Network, onnx: bool = False, by: By = "embeddings"
) -> None:
    """Write weights, ``preprocess.json``, a model card, checksums, and with ``onnx`` a graph.

    Without ``onnx``, an earlier graph is removed. An edited model card is kept. ConfigError if no export wrote the
    existing files.
    """
    with needs_extra("train", "export"):
        from safetensors.torch import save
    if onnx:
        require_packages(("onnx", "onnxruntime", "onnxscript"), "onnx", "export --onnx")
    check_writable("-o", folder)
    folder.mkdir(parents=True, exist_ok=True)
    _check_folder(folder, (WEIGHTS, ABOUT, *([ONNX] if onnx else [])))
    seen = network.preprocessing
    model = recipe.model
    has_head = not isinstance(network.embedder, nn.Identity)
    about: dict[str, Any] = {
        "trunk": {key: _without_folder(value) for key, value in model.trunk.model_dump().items()},
        "by": by,
        "embedding_size": network.embedding_size,
        "hidden_sizes": model.hidden_layers if has_head else None,
        "norm": model.norm if has_head else None,
        "features": network.features,
        **_input_of(seen),
        "l2_normalize_embeddings": True,
    }
    whole = Normalized(merged_lora(network.trunk), network.embedder)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in whole.state_dict().items()}
    replace_file(folder, WEIGHTS, lambda path: path.write_bytes(save(tensors)))  # save_file hides what failed
    metrics: dict[str, Any] = read_metrics(run / METRICS) if (run / METRICS).exists() else {}
    measured = {name: each for name, each in measurements_of(metrics).items() if each.by == by}
    if measured:
        about["measured"] = {name: each.values for name, each in measured.items()}
    about["weights"] = {"file": WEIGHTS, "sha256": sha256_of(folder / WEIGHTS)}
    written = [WEIGHTS]
    if onnx:
        whole = copy.deepcopy(whole).cpu().eval()
        with tempfile.TemporaryDirectory() as place:
            graph = Path(place) / ONNX
            input_name = "vectors" if isinstance(seen, VectorInput) else "images"
            difference = write_onnx(graph, whole, _noise(seen), input_name)
            replace_file(folder, ONNX, functools.partial(shutil.copyfile, graph))
        about["onnx"] = {"file": ONNX, "sha256": sha256_of(folder / ONNX), "largest_difference": difference}
        written.append(ONNX)
    elif is_unchanged(folder, ONNX):
        (folder / ONNX).unlink()
    replace_file(folder, ABOUT, lambda path: path.write_text(json.dumps(about, indent=2) + "\n", "utf-8"))
    if (folder / CARD).exists() and not is_unchanged(folder, CARD):
        text = f"{folder / CARD} was changed, or not written by an export, and is kept"
        warnings.warn(text, UserWarning, stacklevel=3)
    else:
        text = card(run, recipe, about, [*measured.values()])
        replace_file(folder, CARD, lambda path: path.write_text(text, "utf-8"))
        written.append(CARD)
    write_sums(folder, sorted([ABOUT, *written]))


def _without_folder(value: Any) -> Any:
    """Return a trunk's setting without private folders."""
    library, _, place = str(value).partition("/")
    if is_file(value):
        return Path(value).name
    return f"{library}/{Path(place).name}" if Path(place).is_absolute() else value


def _input_of(seen: Preprocessing | VectorInput) -> dict[str, Any]:
    if isinstance(seen, VectorInput):
        return seen.model_dump()
    about = seen.model_dump(exclude={"crop", "resize"})
    return {**about, "resize": seen.resized_to, "exact_size_is_kept": seen.keeps_exact_size}


def _noise(seen: Preprocessing | VectorInput) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(seen, VectorInput):
        return torch.randn(COMPARED, *seen.input_shape, generator=generator)
    noise = torch.randint(256, (COMPARED, *seen.input_shape), generator=generator, dtype=torch.uint8)
    _, transform = seen.transforms()
    return torch.stack([transform(image) for image in noise])


def _check_folder(folder: Path, names: Iterable[str]) -> None:
    files_of_export = (WEIGHTS, ONNX, ABOUT, CARD)
    listed = read_sums(folder)
    written_by_export = WEIGHTS in listed and listed.keys() <= {*files_of_export}
    foreign = [SUMS] if (folder / SUMS).exists() and not written_by_export else []
    if not foreign:
        recover(folder, files_of_export)
        foreign.extend(name for name in names if (folder / name).exists() and not is_unchanged(folder, name))
    if foreign:
        files = " and ".join(str(folder / name) for name in foreign)
        raise ConfigError(f"-o {folder}: {files} was changed, or not written by an export; choose another folder")


@torch.no_grad()
def write_onnx(path: Path, network: Normalized, images: Tensor, input_name: str = "images") -> float:
    """Write an ONNX file for batches of any size; the output is ``embeddings``.

    Returns the largest absolute difference from the network on these images. ConfigError, and no file, if it is above
    1e-4 or torch cannot export the network.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    settings: dict[str, Any] = {
        "input_names": [input_name],
        "output_names": ["embeddings"],
        "dynamic_shapes": {"images": {0: torch.export.Dim("batch", min=1, max=2**16)}},
        "dynamo": True,
        "external_data": False,
    }
    largest = 0.0
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):  # torch's messages
            write_atomically(path, lambda new: torch.onnx.export(network, (images[:2],), str(new), **settings))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for part in (images[:1], *torch.split(images, 7)):
            (embeddings,) = session.run(None, {input_name: part.numpy()})
            difference = float((torch.from_numpy(embeddings) - network(part)).abs().max())
            if not difference <= MOST:  # NaN too
                raise ConfigError(
                    f"{path.name} was deleted: its embeddings differ from the network's by {difference:.1e}, more "
                    f"than {MOST:.0e}. model.safetensors has the weights"
                )
            largest = max(largest, difference)
    except Exception as error:  # torch's exporters have no common base class of errors
        path.unlink(missing_ok=True)
        if isinstance(error, (ConfigError, OSError)):
            raise
        raise ConfigError(
            f"torch {torch.__version__} cannot write this network as ONNX for batches of any size "
            f"({shortened(one_line(error), 250)}); model.safetensors has the weights"
        ) from error
    return largest


def card(run: Path, recipe: Recipe, about: Mapping[str, Any], measurements: Sequence[Measurement] = ()) -> str:
    """Return a model card: Markdown with YAML metadata."""
    measured: dict[str, Any] = {}
    with contextlib.suppress(OSError, DamagedError):
        measured = read_json(run / METRICS)
    by_features = about["by"] == "features"
    after, before = ("features", "frozen") if by_features else ("after", "before")
    trunk = recipe.model.trunk.settings
    weights = trunk["weights"] if is_pretrained(trunk) else None
    values = {
        "after": measured.get(after) or {},
        "before": measured.get(before) or {},
        "trained": measured.get("best_epoch") != 0 and (not by_features or _trains_trunk(recipe)),
        "alike": "of one class" if recipe.data.listed is None else "that belong together",
        "title": html.escape(_title(str(measured.get("recipe") or recipe.loss.name)), quote=False),
        "description": html.escape(recipe.description, quote=False),
        "data": recipe.data.name.partition(":")[0],  # without the path of a folder, which is private
        "weights": Path(str(weights)).name if is_file(weights) else weights,
        "tables": [(each.title, each.text, [*shown_values(each)]) for each in measurements],
        "about": {"onnx": None, **about},
    }
    text = (Path(__file__).parent / "card.md.jinja").read_text("utf-8")
    template = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    return str(template.render(values, recipe=recipe, title_of=title_of))


def _trains_trunk(recipe: Recipe) -> bool:
    """Return whether any stage trains a part of the trunk."""
    are_frozen = all(_freezes_trunk(stage.freeze) for stage in recipe.all_stages())
    return not are_frozen and not _freezes_trunk(recipe.model.freeze)


def _freezes_trunk(freeze: Freeze) -> bool:
    cut = cut_of(freeze)
    return cut.until == HEAD if cut is not None else "*" in frozen_patterns(freeze)


def _title(recipe: str) -> str:
    """Return a recipe's name without a private folder."""
    file, dot_toml, variant = recipe.partition(".toml")
    return Path(file).name + variant if dot_toml else recipe

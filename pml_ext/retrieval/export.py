"""The network of a run for programs without this package: weights, graphs, preprocessing and a model card."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checksums import is_unchanged, sha256_of, write_sums
from ..collection import StoreWarning
from ..errors import ConfigError, needs_extra, one_line, shortened
from ..experiment.recipe import Recipe
from ..files import DamagedError, read_json, write_atomically, write_json, write_text
from ..lazy import check_there
from ..network import Network
from ..pretrained import merged_lora

WEIGHTS, ONNX, ABOUT, CARD = "model.safetensors", "model.onnx", "preprocess.json", "README.md"
MOST = 1e-4  # the largest accepted difference of an embedding's number
COMPARED = 100  # images of noise by which a graph is compared with the network


class Normalized(nn.Module):
    """Embeddings of length 1 of transformed images, ``[B, C, S, S]`` to ``[B, D]``."""

    def __init__(self, trunk: nn.Module, embedder: nn.Module) -> None:
        super().__init__()
        self.trunk, self.embedder = trunk, embedder

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings, ``[B, D]``."""
        return nn.functional.normalize(self.embedder(self.trunk(images)))


def write_export(folder: Path, run: Path, recipe: Recipe, network: Network, onnx: bool = False) -> None:
    """Write ``model.safetensors``, ``model.onnx``, ``preprocess.json``, a model card, and the checksums of all.

    A graph of an earlier export that is not wanted now is removed; a card that somebody has changed stays.
    """
    with needs_extra("train", "export"):
        from safetensors.torch import save_file
    if onnx:
        check_there(("onnx", "onnxruntime", "onnxscript"), "onnx", "export --onnx")
    folder.mkdir(parents=True, exist_ok=True)
    seen, model = network.preprocessing, recipe.model
    about: dict[str, Any] = {
        "trunk": {"name": model.trunk.name, **model.trunk.settings},
        "embedding_size": model.embedding_size,
        "hidden_sizes": model.hidden_sizes,
        "norm": model.norm,
        "features": network.features,
        **seen.model_dump(exclude={"crop", "resize"}),
        "resize": seen.resized_to,
        "l2_normalize_embeddings": True,
    }
    parts = {"trunk": merged_lora(network.trunk), "embedder": network.embedder}
    tensors = {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    write_atomically(folder / WEIGHTS, lambda path: save_file(tensors, path))
    about["weights"] = {"file": WEIGHTS, "sha256": sha256_of(folder / WEIGHTS)}
    written = [WEIGHTS]
    if onnx:
        whole = copy.deepcopy(Normalized(parts["trunk"], network.embedder)).cpu().eval()
        shape = (COMPARED, seen.channels, seen.image_size, seen.image_size)
        noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        _, transform = seen.transforms()
        difference = write_onnx(folder / ONNX, whole, torch.stack([transform(image) for image in noise]))
        about["onnx"] = {"file": ONNX, "sha256": sha256_of(folder / ONNX), "largest_difference": difference}
        written.append(ONNX)
    elif is_unchanged(folder, ONNX):
        (folder / ONNX).unlink()
    write_json(folder / ABOUT, about)
    if (folder / CARD).exists() and not is_unchanged(folder, CARD):
        text = f"{folder / CARD} is none that an export wrote, or was changed since; it is left as it is"
        warnings.warn(text, StoreWarning, stacklevel=3)
    else:
        write_text(folder / CARD, card(run, recipe, about, written))
        written.append(CARD)
    write_sums(folder, sorted([ABOUT, *written]))


@torch.no_grad()
def write_onnx(path: Path, network: Normalized, images: Tensor) -> float:
    """Write an ONNX file, input ``images`` and output ``embeddings``, for batches of any size.

    Return the largest difference of a number of an embedding of these images, in batches of one and of seven. A
    ConfigError says that torch cannot write the network, or that it is above 1e-4; the file is not kept.
    """
    import onnxruntime

    settings: dict[str, Any] = {"input_names": ["images"], "output_names": ["embeddings"]}
    batch = torch.export.Dim("batch", min=1, max=2**16)
    settings |= {"dynamo": True, "dynamic_shapes": {"images": {0: batch}}, "external_data": False}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # they are of torch's own code
            write_atomically(path, lambda new: torch.onnx.export(network, (images[:2],), str(new), **settings))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        parts = (images[:1], *torch.split(images, 7))
        found = [torch.from_numpy(session.run(None, {"images": part.numpy()})[0]) for part in parts]
        largest = max(float((one - network(part)).abs().max()) for one, part in zip(found, parts, strict=True))
        if not largest <= MOST:  # NaN too
            raise ConfigError(
                f"{path.name} gives embeddings that differ from the network's by {largest:.1e}, more "
                f"than {MOST:.0e}; it is not kept. model.safetensors has the weights"
            )
    except Exception as error:  # torch's tracers have no common error
        path.unlink(missing_ok=True)
        if isinstance(error, (ConfigError, OSError)):
            raise
        raise ConfigError(
            f"torch {torch.__version__} cannot write this network as ONNX for batches of any size "
            f"({shortened(one_line(error), 250)}); model.safetensors has the weights"
        ) from error
    return largest


# The model card

_WAYS = {
    ONNX: """import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
embedding = session.run(None, {"images": images.numpy()})[0]""",
    WEIGHTS: """from safetensors.torch import load_file
tensors = load_file("model.safetensors")  # named trunk.KEY and embedder.KEY""",
}


def card(run: Path, recipe: Recipe, about: Mapping[str, Any], files: Sequence[str]) -> str:
    """Return the text of a model card, for ``preprocess.json``: Markdown with a head in YAML, as model hubs read it."""
    measured: dict[str, Any] = {}
    with contextlib.suppress(OSError, DamagedError):
        measured = read_json(run / "metrics.json")
    after, before = measured.get("after") or {}, measured.get("before") or {}
    metrics = "".join(f"{line}\n" for line in ("metrics:", *(f"- {name}" for name in after)))
    size, trunk = about["image_size"], recipe.model.trunk
    mode = "" if about["interpolation"] == "bilinear" else "v2.InterpolationMode.BICUBIC, "
    cut = f"v2.Resize([{size}, {size}], {mode}antialias=True)"
    if about["resize"] is not None:
        cut = f"v2.Resize({about['resize']}, {mode}antialias=True), v2.CenterCrop({size})"
    steps = ["v2.PILToTensor()", cut, *["v2.Lambda(lambda image: image.flip(-3))"] * about["bgr"]]
    steps.append(f"v2.ToDtype(torch.float32, scale={about['value_range'] == 1})")
    if about["normalize"] is not None:
        steps.append(f"v2.Normalize({about['normalize']['mean']}, {about['normalize']['std']})")
    ways = "".join(f"`{name}`:\n\n```python\n{_WAYS[name]}\n```\n\n" for name in sorted(files))
    license, terms = "unknown", "Trained from random weights, without a license of their own."
    if (weights := trunk.settings.get("weights")) is not None:
        license, terms = "other", f"Training began with the weights `{weights}` of `{trunk.name}`: their license holds."
    data = recipe.data.name.partition(":")[0]  # a folder's place on somebody's disk is nobody else's business
    rows: list[tuple[str, ...]] = [("on the test images", "trained", "before training"), ("---",) * 3]
    rows += [(f"`{name}`", *(f"{each.get(name) or 0.0:.4f}" for each in (after, before))) for name in after]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows) if after else "Not measured."
    return f"""---
license: {license}
library_name: pml-ext
pipeline_tag: image-feature-extraction
tags:
- metric-learning
- image-retrieval
- embeddings
{metrics}---

# {measured.get("recipe") or recipe.loss.name}

Maps an image to an embedding of {about["embedding_size"]} numbers, of length 1: images of one class are close to each
other. Trained on `{data}` with the loss `{recipe.loss.name}` for {recipe.schedule.epochs} epochs; the trunk is
`{trunk.name}`. {recipe.description}

## Metrics

{table}

## Preprocessing

In `preprocess.json`; as torchvision's transforms:

```python
import torch
from PIL import Image
from torchvision.transforms import v2

steps = v2.Compose([{", ".join(steps)}])
images = steps(Image.open("photo.jpg").convert("{"L" if about["channels"] == 1 else "RGB"}"))[None]
```

## How to load it

With `images` as above, and without the package that trained it.

{ways}
## License of the weights

{terms} The terms of the images that it was trained on may bind it too.
"""

"""The model card of an export: Markdown with a head in YAML, as model hubs read it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torchvision.models as zoo
from torch import nn

from ..experiment.recipe import Recipe
from ..files import DamagedError, read_json
from ..models import PREFIX, TIMM, timm_library

CARD = "README.md"


def card(run: Path, recipe: Recipe, trunk: nn.Module, about: Mapping[str, Any], files: Sequence[str]) -> str:
    """Return the text of a model card.

    Args:
        run: the run's folder.
        recipe: of the run.
        trunk: of the run.
        about: the content of ``preprocess.json``.
        files: the weights and the graphs.
    """
    measured: dict[str, Any] = {}
    with contextlib.suppress(OSError, DamagedError):
        measured = read_json(run / "metrics.json")
    license, words = _license(recipe)
    steps = "\n".join(_steps(about))
    metrics = "".join(f"{line}\n" for line in ("metrics:", *(f"- {name}" for name in measured.get("after", {}))))
    begun = recipe.description.rstrip(".") + ". " if recipe.description else ""
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
other. {begun}

## Training

{_table(("", ""), _facts(recipe, measured))}

## Metrics

{_metrics_of(measured)}

## Preprocessing

In `preprocess.json`, with the checksums of the files; as torchvision's transforms:

```python
from torchvision.transforms import v2

{steps}
```

## How to load it

With `images` as above, and without the package that trained it.

{_how_to_load(recipe, trunk, about, files)}
## License of the weights

{words}
"""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    escaped = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *escaped))


def _facts(recipe: Recipe, measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    kind, _, path = recipe.data.name.partition(":")  # a folder's place on somebody's disk is nobody else's business
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    trunk = recipe.model.trunk
    rows = [("data", f"{kind}:{name}" if path else kind)]
    for split, of in sorted(measured.get("images", {}).items(), reverse=True):
        rows.append((f"images to {split} with", f"{of['images']} of {of['classes']} classes"))
    rows += [
        ("loss", f"`{recipe.loss.name}`{_settings(recipe.loss.settings)}"),
        ("trunk", f"`{trunk.name}`{_settings(trunk.settings)}"),
        ("epochs", str(recipe.schedule.epochs)),
        ("precision", recipe.engine.precision),
    ]
    if versions := measured.get("versions"):
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return rows


def _settings(settings: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items())
    return f" with {listed}" if settings else ""


def _metrics_of(measured: Mapping[str, Any]) -> str:
    if "after" not in measured:
        return "Not measured."
    phases = {"after": "trained", "before": "before training", "raw": "raw pixels"}
    have = {phase: title for phase, title in phases.items() if isinstance(measured.get(phase), dict)}

    def shown(value: Any) -> str:
        return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)

    rows = [[f"`{name}`", *(shown(measured[phase].get(name)) for phase in have)] for name in measured["after"]]
    return "On the test images of the data.\n\n" + _table(["", *have.values()], rows)


def _steps(about: Mapping[str, Any]) -> list[str]:
    """The transform of an image, as code."""
    size = about["image_size"]
    steps = ["v2.PILToTensor()"]
    if about["resize"] is None:
        steps.append(f"v2.Resize([{size}, {size}], antialias=True)")
    else:
        steps += [f"v2.Resize({about['resize']}, antialias=True)", f"v2.CenterCrop({size})"]
    if about["bgr"]:
        steps.append("v2.Lambda(lambda image: image.flip(-3))")
    steps.append(f"v2.ToDtype(torch.float32, scale={about['value_range'] == 1})")
    if about["normalize"] is not None:
        steps.append(f"v2.Normalize({about['normalize']['mean']}, {about['normalize']['std']})")
    mode = "L" if about["channels"] == 1 else "RGB"
    return [
        "import torch",
        "from PIL import Image",
        "",
        f"steps = v2.Compose([{', '.join(steps)}])",
        f'images = steps(Image.open("photo.jpg").convert("{mode}"))[None]',
    ]


def _how_to_load(recipe: Recipe, trunk: nn.Module, about: Mapping[str, Any], files: Sequence[str]) -> str:
    ways = {
        "model.onnx": [
            "import onnxruntime",
            'session = onnxruntime.InferenceSession("model.onnx")',
            'embedding = session.run(None, {"images": images.numpy()})[0]',
        ],
        "model.pt2": [
            "import torch",
            'network = torch.export.load("model.pt2").module()',
            "embedding = network(images)",
        ],
        "model.safetensors": ["from safetensors.torch import load_file", *_network(recipe, trunk, about)],
    }
    blocks = [(name, "\n".join(code)) for name, code in ways.items() if name in files]
    return "".join(f"`{name}`:\n\n```python\n{code}\n```\n\n" for name, code in blocks)


def _network(recipe: Recipe, trunk: nn.Module, about: Mapping[str, Any]) -> list[str]:
    name = recipe.model.trunk.name
    if not name.startswith(PREFIX) or about["channels"] != 3 or about["hidden_sizes"] != []:
        return ['tensors = load_file("model.safetensors")  # named trunk.KEY and embedder.KEY']
    last = [place for place, module in trunk.named_modules() if isinstance(module, nn.Identity)][-1]
    owner, _, own = last.rpartition(".")
    return [
        "import torch, torchvision",
        f'trunk = torchvision.models.get_model("{name.removeprefix(PREFIX)}")',
        f'setattr(trunk.get_submodule("{owner}"), "{own}", torch.nn.Identity())',
        f"embedder = torch.nn.Linear({about['features']}, {about['embedding_size']})",
        'network = torch.nn.ModuleDict({"trunk": trunk, "embedder": embedder}).eval()',
        'network.load_state_dict(load_file("model.safetensors"))',
        "embedding = torch.nn.functional.normalize(embedder(trunk(images)))",
    ]


def _license(recipe: Recipe) -> tuple[str, str]:
    """Return the license's short name, and a sentence on it."""
    trunk = recipe.model.trunk
    weights = trunk.settings.get("weights")
    if weights is None:
        return "unknown", (
            "Trained from random weights, with no license of their own: whoever trained them says under which they "
            "may be used. The terms of the images may bind them too."
        )
    begun = f"Training began with the weights `{weights}` of `{trunk.name}`, "
    if trunk.name.startswith(PREFIX):
        with contextlib.suppress(KeyError, ValueError):
            meta = zoo.get_model_weights(trunk.name.removeprefix(PREFIX))[weights].meta
            if "license" in meta:
                return "other", f"{begun}whose license is at {meta['license']}; it holds for what was made of them."
        return "unknown", (
            f"{begun}for which torchvision names no license; the terms of the images that they were trained on "
            "(ImageNet's: research that is not commercial) may hold for what was made of them."
        )
    if trunk.name.startswith(TIMM):
        name = trunk.name.removeprefix(TIMM)
        known = getattr(timm_library(name).get_pretrained_cfg(f"{name}.{weights}"), "license", None)
        if known:
            return known, f"{begun}which timm gives under {known}; it holds for what was made of them."
    return "unknown", f"{begun}whose license is not known here."

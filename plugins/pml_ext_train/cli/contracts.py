"""Checks of what plugins provide for runs."""

import copy
import math
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext.errors import ConfigError, DataError, MissingExtraError, PmlExtError, counted
from pml_ext.evaluation.calculator import RetrievalAccuracyCalculator
from pml_ext.evaluation.of_plugins import needs_clusters
from pml_ext.registry import settings_of
from pml_ext.testing import SkipCheck
from pml_ext.testing.batches import shuffle
from pml_ext.testing.calling import error_summary
from pml_ext.testing.contracts import Contract, Named, requires_no_options, takes_arguments
from pml_ext.testing.subject import set_seed

from ..data import DataSplits
from ..recipe import load_recipes

_SIZES = ((3, 64), (1, 28), (3, 224))  # channels and pixels with which a trunk is tried, in this order
_FORMS_OF_IMAGES = ((3, 40), (1, 28))  # channels and pixels with which a transform is tried
_SEEDS_OF_TRANSFORMS = 16
_IMAGES_READ = 100  # of each split, spread over it


def _described(value: Any) -> str:
    """Return a tensor's type and shape, or the type of anything else."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} of shape {tuple(value.shape)}"


def _require(holds: Any, text: str) -> None:
    """Raise AssertionError unless something holds."""
    if not holds:
        raise AssertionError(text)


def check_data_set(named: Named) -> str:
    """A data set returns the same labeled splits each time, or a DataError without its files.

    It gets an empty folder, so nothing is downloaded.
    """
    takes_arguments(named.value, "root")
    requires_no_options(named.value, positions=1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            one = _drawn(named.value, Path(folder))
            other = _drawn(named.value, Path(folder))
        except DataError as error:
            return f"without its files it stops: {error}"
        return _check_equal_draws(one, other)


def _drawn(factory: Callable[..., Any], folder: Path) -> DataSplits:
    try:
        splits = _splits_of(factory, folder)
    except OSError as error:
        raise AssertionError(
            f"without its files it raises {error_summary(error)}; wanted pml_ext.plugin.DataError, with the path and "
            "the command to type"
        ) from error
    _require(isinstance(splits, DataSplits), f"it returns {type(splits).__name__}; wanted pml_ext.plugin.DataSplits")
    return splits  # type: ignore[no-any-return]


def _splits_of(factory: Callable[..., Any], folder: Path) -> Any:
    try:
        return factory(folder)
    except ConfigError:  # the data set needs no folder
        return factory(None)


def _check_equal_draws(one: DataSplits, other: DataSplits) -> str:
    """Check all splits, and that two draws agree; return the numbers of images."""
    others = {"train": other.train, **other.tested()}
    counts = []
    for split, images in {"train": one.train, **one.tested()}.items():
        _check_images(split, images, one.channels)
        _require(
            images.labels.tolist() == others[split].labels.tolist(),
            f"{split} has other labels in a second call; draw by a generator with a fixed seed",
        )
        counts.append(f"{split} {len(images)}")
    return ", ".join(counts)


def _check_images(split: str, images: Any, channels: int) -> None:
    _require(len(images), f"{split} has no image")
    least, most = int(images.labels.min()), int(images.labels.max())
    _require(
        least >= 0 and most < len(images.class_names),
        f"labels of {split} are {least} to {most}, but there are {len(images.class_names)} class_names; labels are "
        "indices into them",
    )
    for index in np.unique(np.linspace(0, len(images) - 1, _IMAGES_READ, dtype=np.int64)).tolist():
        image, _ = images[index]
        if images.vector_size is not None:
            _require(
                image.dtype == torch.float32 and image.isfinite().all(),
                f"vector {index} of {split} is {image.dtype}; wanted float32 and finite numbers",
            )
            continue
        _require(
            image.dtype == torch.uint8 and image.ndim == 3 and len(image) == channels,
            f"image {index} of {split} is {_described(image)}; wanted uint8 [{channels}, H, W]",
        )


def check_trunk(named: Named) -> str:
    """A trunk turns images into features, alone as in a batch, and can be trained and saved."""
    takes_arguments(named.value, "in_channels", "image_size")
    requires_no_options(named.value, positions=2)
    problems = []
    for channels, size in _SIZES:
        try:
            trunk = named.value(channels, size)
        except Exception as error:
            problems.append(error_summary(error))
            continue
        return _check_network(named, trunk, channels, size)
    raise AssertionError(f"it cannot be built for {_SIZES} channels and pixels: {'; '.join(dict.fromkeys(problems))}")


def _check_network(named: Named, trunk: Any, channels: int, size: int) -> str:
    _require(isinstance(trunk, torch.nn.Module), f"it returns {type(trunk).__name__}; wanted a torch.nn.Module")
    images = torch.rand(4, channels, size, size)
    features = trunk(images)
    _require(
        isinstance(features, torch.Tensor) and features.ndim == 2 and len(features) == 4,
        f"images {tuple(images.shape)} give {_described(features)}; wanted features [4, F]",
    )
    _require(not images._version, "it changes the images in place, but tests use them too; clone() them first")
    _require(features.dtype == torch.float32, f"it gives {features.dtype} for float32 images; wanted float32")
    parameters = [parameter for parameter in trunk.parameters() if parameter.requires_grad]
    if features.requires_grad:
        features.sum().backward()
    _require(
        not parameters or any(parameter.grad is not None for parameter in parameters),
        "no parameter gets a gradient; look for detach(), torch.no_grad() and .data",
    )
    trunk.eval()
    with torch.no_grad():
        whole = trunk(images)
        _require(
            whole.shape == features.shape,
            f"in eval() it gives {whole.shape[1]} features of an image, in training {features.shape[1]}",
        )
        _require(whole.isfinite().all(), "its features of random images are not finite")
        alone = torch.cat([trunk(image[None]) for image in images])
        _require(
            torch.allclose(alone, whole, rtol=1e-3, atol=1e-4),
            "in eval() the features of an image depend on the rest of the batch, or are random",
        )
        twin = named.value(channels, size).eval()
        twin.load_state_dict(copy.deepcopy(trunk.state_dict()))
        _require(
            torch.allclose(twin(images), whole, rtol=1e-3, atol=1e-4),
            "with its state dict another trunk gives other features: something is not saved",
        )
    return f"{features.shape[1]} features of {channels} x {size} x {size}"


def check_transform(named: Named) -> str:
    """A transform keeps uint8 and shape, uses only torch's generator, and can be pickled."""
    requires_no_options(named.value)
    transform = named.value()
    _require(callable(transform), f"it returns {type(transform).__name__}; wanted a function of an image")
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise AssertionError(
            f"it cannot be pickled, as data.workers requires: {error_summary(error)}; define functions and "
            "classes at the top of a module"
        ) from error
    fitting = []
    problems = []
    for channels, size in _FORMS_OF_IMAGES:
        try:
            _check_transformed(transform, channels, size)
            fitting.append("gray" if channels == 1 else "color")
        except AssertionError:
            raise
        except Exception as error:
            problems.append(error_summary(error))
    _require(fitting, f"it refuses gray and color images: {'; '.join(dict.fromkeys(problems))}")
    return f"for {' and '.join(fitting)}"


def _check_transformed(transform: Any, channels: int, size: int) -> None:
    for seed in range(_SEEDS_OF_TRANSFORMS):
        set_seed(seed)
        image = torch.randint(256, (channels, size, size), dtype=torch.uint8)
        set_seed(seed)
        one = transform(image.clone())
        set_seed(seed)
        other = transform(image.clone())
        _require(
            isinstance(one, torch.Tensor) and one.dtype == torch.uint8 and one.shape == image.shape,
            f"it gives {_described(one)} for uint8 {tuple(image.shape)}; wanted the same type and shape",
        )
        _require(
            torch.equal(one, other),
            "with the same seed of torch it gives other pixels; draw from torch's generator, not from random or "
            "numpy.random",
        )


def check_metric(named: Named) -> str:
    """A metric is finite, does not depend on the order, and works with a gallery and without."""
    calculator = RetrievalAccuracyCalculator(include=(named.name,), k="max_bin_count", device=torch.device("cpu"))
    labels = torch.arange(6).repeat_interleave(5)
    centers = torch.nn.functional.normalize(torch.randn(6, 8))
    points = torch.nn.functional.normalize(centers[labels] + 0.4 * torch.randn(30, 8))
    order = shuffle(30, 1)

    def value(*arguments: Any) -> float:
        found = float(calculator.get_accuracy(*arguments)[named.name])
        _require(math.isfinite(found), f"it gives {found} for six classes of five images")
        return found

    first = value(points, labels)
    other = value(points[order], labels[order])
    _require(
        needs_clusters(named.value) or math.isclose(first, other, rel_tol=1e-5, abs_tol=1e-6),
        f"it depends on the order of the images: {first:.6g} and {other:.6g}",
    )
    in_gallery = value(points[::2], labels[::2], points[1::2], labels[1::2])
    return f"{first:.4g}, and {in_gallery:.4g} with a gallery"


def check_tracker(named: Named) -> None:
    """A tracker logs numbers and NaN, and can end in three ways."""
    filled = {"folder": Path(), "recipe": {"loss.name": "cbml"}, "iteration": 0, "epoch": 0}
    requires_no_options(named.value, filled)
    known = settings_of(named.value)
    endings: dict[str, dict[str, Any]] = {"finished": {"after": {"recall_at_1": 0.5}}, "stopped": {}, "failed": {}}
    for status, metrics in endings.items():
        with tempfile.TemporaryDirectory() as folder:
            filled["folder"] = Path(folder)
            tracker = named.value(**{name: value for name, value in filled.items() if name in known})
            for method in ("log", "finish"):
                _require(
                    callable(getattr(tracker, method, None)),
                    f"it returns {type(tracker).__name__} without the method {method}()",
                )
            tracker.log({"loss_histories/total_loss": 0.5, "loss_histories/other": math.nan}, 1)
            tracker.log({"accuracies_test_by_epoch/recall_at_1": 0.25}, 1)
            if hasattr(tracker, "flush"):
                tracker.flush()
            tracker.finish(status, metrics, Path(folder) / "report.html")


def check_command(named: Named) -> None:
    """A command is a function that typer can call; its ``--help`` works."""
    import typer
    from typer.testing import CliRunner

    function = named.value.load(named.name, named.plugin)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(named.name)(function)
    text = "its --help fails, because typer cannot read its parameters"
    try:
        shown = CliRunner().invoke(app, ["--help"])
    except Exception as error:
        raise AssertionError(f"{text}: {error_summary(error)}") from error
    problem = error_summary(shown.exception) if shown.exception else shown.output
    _require(shown.exit_code == 0, f"{text}: {problem}")


def check_recipe(named: Named) -> str:
    """A recipe is valid TOML whose names are known, and whose losses can be built."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of losses, about their settings
            variants = load_recipes(named.name)
    except MissingExtraError as error:
        raise SkipCheck(f"{named.name}: {error}") from None
    except PmlExtError as error:
        raise AssertionError(str(error)) from error
    for recipe in variants.values():
        _require(
            recipe.description.strip(),
            f"{named.name} has no description, which `pml-ext list recipes` shows; write one",
        )
    return f"{named.name}: {counted(len(variants), 'run')}"


CHECKS: dict[str, Contract] = {
    "data set": check_data_set,
    "trunk": check_trunk,
    "transform": check_transform,
    "metric": check_metric,
    "tracker": check_tracker,
    "command": check_command,
    "recipe": check_recipe,
}

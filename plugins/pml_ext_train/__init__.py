"""Training, as a plugin: recipes, data sets, trunks, trackers, runs and the command line."""

from collections.abc import Callable
from typing import Any

from pml_ext.errors import needs_extra
from pml_ext.plugin import Command, hookimpl, packaged

pml_ext_recipes, _ = packaged("pml_ext_train")  # recipes of PML's own losses, as baselines


@hookimpl
def pml_ext_datasets() -> dict[str, Callable[..., Any]]:
    """Return the data sets that need no account."""
    with needs_extra("train", "a data set"):
        from .data import builtin_datasets

        return builtin_datasets()


@hookimpl
def pml_ext_trunks() -> dict[str, Callable[..., Any]]:
    """Return our small networks and torchvision's classification models."""
    with needs_extra("train", "a trunk"):
        from .networks.trunks import builtin_trunks

        return builtin_trunks()


@hookimpl
def pml_ext_transforms() -> dict[str, Callable[..., Any]]:
    """Return torchvision's transforms of one image."""
    with needs_extra("train", "a transform"):
        from .data import torchvision_transforms

        return torchvision_transforms()


@hookimpl
def pml_ext_trackers() -> dict[str, Callable[..., Any]]:
    """Return TensorBoard, Weights & Biases, MLflow and Trackio."""
    from .records.trackers import builtin_trackers

    return builtin_trackers()


@hookimpl
def pml_ext_checks() -> dict[str, Callable[..., Any]]:
    """Return the checks of what plugins name for runs."""
    with needs_extra("train", "a check of data sets, trunks and recipes"):
        from .cli.contracts import CHECKS

        return {**CHECKS}


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """Return the commands of runs."""
    return {
        "list": Command("pml_ext_train.cli.listing:list_names", "List losses, recipes, data sets and more."),
        "show": Command("pml_ext_train.cli.listing:show", "Show the settings of a loss, recipe or data set."),
        "train": Command("pml_ext_train.cli.train:train", "Train and test a recipe, and write a report."),
        "report": Command("pml_ext_train.cli.train:report", "Redraw the report of a finished run."),
        "check": Command("pml_ext_train.cli.plugins:check", "Run the conformance checks; exit code 1 if one fails."),
        "plugins": Command(
            "pml_ext_train.cli.plugins:plugins", "List the installed plugins; exit code 1 if one is broken."
        ),
        "new-plugin": Command(
            "pml_ext_train.cli.plugins:new_plugin", "Write a new plugin: a package with a loss and tests."
        ),
        "data": Command("pml_ext_train.cli.listing:data", "Describe, check and download a data set."),
        "export": Command("pml_ext_train.cli.export:export", "Export the network: safetensors, ONNX, model card."),
        "bench": Command("pml_ext_train.cli.bench:bench", "Measure time and memory of losses or training steps."),
        "doctor": Command(
            "pml_ext_train.cli.doctor:doctor", "Show versions, devices, extras and plugins, and test them."
        ),
    }

"""Contracts of data sets, transforms, trunks, metrics, trackers and others: bugs are found, ours keep them."""

import re

import pytest
import torch

from pml_ext.plugin import Command, DataError, DataSplits, LabeledImages
from pml_ext.testing.contracts import Named
from pml_ext_train.cli.targets import check_named, find_named_by_name


def shapes(root=None, seed=0, channels=1, dtype=torch.uint8, offset=0):
    """Two splits of random images."""
    generator = torch.Generator().manual_seed(seed)

    def part(count):
        labels = torch.randint(4, (count,), generator=generator) + offset
        return LabeledImages(torch.zeros(count, channels, 8, 8, dtype=dtype), labels, ["a", "b", "c", "d"])

    return DataSplits(part(20), part(12), image_size=8, channels=1)


def missing(root=None):
    """A data set whose files are not there."""
    raise DataError(f"{root}: no images; type: fetch them")


def rows(root=None, dtype=torch.float32):
    """A data set of vectors."""
    half = LabeledImages(torch.arange(12, dtype=dtype).reshape(4, 3), [0, 0, 1, 1], ["one", "two"])
    return DataSplits(half, half)


class Trunk(torch.nn.Module):
    """A small trunk."""

    def __init__(self, in_channels, image_size):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels * image_size**2, 5)

    def forward(self, images):
        return self.layer(images.flatten(1))


class OfBatch(Trunk):
    """Subtracts the mean of the batch."""

    def forward(self, images):
        return super().forward(images - images.mean(0))


def pixels(in_channels, image_size):
    """Gives the pixels themselves, without parameters."""
    return torch.nn.Flatten()


class Detached(Trunk):
    """Trains nothing."""

    def forward(self, images):
        return super().forward(images).detach()


class Tracker:
    """Records nothing."""

    def __init__(self, folder, recipe):
        self.closed = False

    def log(self, values, step):
        assert not self.closed

    def finish(self, status, metrics, report):
        self.closed = True


class OnlyFinished(Tracker):
    """Reads metrics that only a finished run has."""

    def finish(self, status, metrics, report):
        return metrics["after"]


class Transform:
    """Inverts half of the images."""

    def __call__(self, image):
        return 255 - image if torch.rand(()) < 0.5 else image


def of_color():
    """Swaps colors, which a gray image has not."""
    return swapped


def swapped(image):
    return torch.stack([image[2], image[1], image[0]])


BUGS = {
    "labels": (
        "data set",
        lambda root=None: shapes(offset=2),
        "labels of train are 2 to 5, but there are 4",
    ),
    "drawn anew": ("data set", lambda root=None: shapes(seed=torch.seed()), "other labels in a second call"),
    "floats": (
        "data set",
        lambda root=None: shapes(dtype=torch.float32),
        "images of train are torch.float32 .*they must be uint8",
    ),
    "channels": ("data set", lambda root=None: shapes(channels=3), r"they must be uint8 \[N, 1, H, W\]"),
    "doubles": ("data set", lambda root=None: rows(dtype=torch.float64), "vector 0 of train is torch.float64; wanted"),
    "no splits": ("data set", lambda root=None: [], "it returns list; wanted pml_ext.plugin.DataSplits"),
    "no root": ("data set", lambda: shapes(), r"called as factory\(root, ...\), but too many"),
    "os error": (
        "data set",
        lambda root=None: (root / "x").read_text(),
        "raises FileNotFoundError.*wanted pml_ext",
    ),
    "of the batch": ("trunk", OfBatch, "features of an image depend on the rest of the batch"),
    "detached": ("trunk", Detached, r"no parameter gets a gradient; look for detach\(\)"),
    "no module": ("trunk", lambda channels, size: 5, "it returns int; wanted a torch.nn.Module"),
    "not built": ("trunk", lambda channels, size: 1 / 0, "cannot be built for .*ZeroDivisionError"),
    "floats of images": ("transform", lambda: torch.Tensor.float, "it gives torch.float32 of shape .*the same type"),
    "not called": ("transform", lambda: 3, "it returns int; wanted a function of an image"),
    "not sent": ("transform", lambda: lambda image: image, "cannot be pickled, as data.workers requires"),
    "fails": ("transform", lambda: torch.linalg.inv, "it refuses gray and color images: (Runtime|NotImplemented)Error"),
    "half": ("tracker", lambda folder: object(), "returns object without the method log"),
    "failed run": ("tracker", OnlyFinished, "KeyError: 'after'"),
    "one argument": ("store", lambda address: None, r"factory\(address, table, size, ...\), but too many"),
    "gone": (
        "command",
        Command("tests.plugins.train.cli.test_contracts:nothing", "x"),
        "the command 'bug' of the plugin",
    ),
    "untyped": ("command", Command("tests.plugins.train.cli.test_contracts:untyped", "x"), "its --help fails"),
}


def untyped(what: int | str):
    """Take what typer does not know."""


@pytest.mark.parametrize(("kind", "value", "text"), BUGS.values(), ids=BUGS)
def test_a_bug_is_found_and_named(kind, value, text):
    found = [
        result for result in check_named(Named(kind, "bug", value, "mine")) if result.check != "check_documentation"
    ]
    assert [result.status for result in found] == ["failed"]
    assert re.search(text, found[0].text), found[0].text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("data set", shapes),
        ("data set", rows),
        ("data set", missing),
        ("trunk", Trunk),
        ("trunk", pixels),
        ("transform", Transform),
        ("transform", of_color),
        ("tracker", Tracker),
    ],
)
def test_correct_factories_pass_all_checks(kind, value):
    assert [(r.status, r.text) for r in check_named(Named(kind, "mine", value, "mine")) if r.fails] == []


@pytest.mark.parametrize(
    "name",
    ["RandomErasing", "ColorJitter", "RandomRotation", "convnet", "mlp", "digits", "tensorboard", "compare"],
)
def test_our_own_factories_keep_their_contracts(name):
    results = [result for named in find_named_by_name(name) for result in check_named(named)]
    assert results
    assert [(result.check, result.text) for result in results if result.fails] == []


def test_what_has_no_docstring_is_named():
    (result, _) = check_named(Named("store", "bare", lambda address, table, size: None, "mine"))
    assert "no docstring" in result.text

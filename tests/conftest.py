"""Fixtures that several parts share."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pml_ext.testing.fixtures import isolated_registry  # noqa: F401

from .overrides import typed

# One thread in this process and in all that it starts. Where cores are busy with something else, two threads spend most
# of their time in loops that wait for one another: eight times as much for a k-means as one thread takes.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Who starts the tests may ignore signals, as nohup and a shell's "&" do; a program that they start would, too.
for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, name), handler)

InstallPlugin = Callable[..., Path]

PLUGIN_WITH_A_LOSS = """
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.miners import BatchHardMiner
    from pml_ext.plugin import Component, Paper, hookimpl

    class {class_name}Loss(ContrastiveLoss):
        '''A loss of somebody else.'''
        capabilities = frozenset({{"labels", "indices_tuple"}})

    @hookimpl
    def pml_ext_components():
        return [Component({class_name}Loss, name="{name}", paper=Paper("T", "A", 2020, "https://example.org"))]
"""


# Whole runs, kills, several processes, timings, all conformance checks: not in `.ci/run fast`.
SLOW = {
    "integration",
    "distributed",
    "cli",
    "testing",
    "search",
    "copies",
    "test_processes.py",
    "test_on_ray.py",
    "test_on_slurm.py",
    "test_job_queue.py",
    "test_run.py",
    *("test_tuning.py", "test_benchmark.py"),
    "faults",
}


PASSED = Path(os.environ.get("PASSED_TESTS", os.devnull))  # .ci/run sets it: each test runs in one environment only


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes long, by where it stands; leave out what has passed in another environment."""
    here = Path(__file__).parent
    for item in items:
        slow = item.path.is_relative_to(here) and SLOW & {*item.path.relative_to(here).parts}
        if slow and not item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    passed = set(PASSED.read_text().splitlines()) if PASSED.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what has passed, for other environments."""
    if hasattr(terminalreporter.config, "workerinput"):  # the main process has all reports
        return
    with PASSED.open("a") as file:
        reports = terminalreporter.stats.get("passed", [])
        file.writelines(f"{report.nodeid}\n" for report in reports if report.when == "call")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Here, doctests are looked for in no file: scripts and wrong components would be imported for them."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler, since tests of losses that share code would share the limit of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def pml_ext_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``pml-ext ARGUMENTS`` in this process, which saves the start of one: its exit code and what it wrote."""
    from pml_ext_train.cli import main

    def run(*given: object, **environment: str) -> subprocess.CompletedProcess[str]:
        arguments = [*map(str, given)]
        capfd.readouterr()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.resetwarnings()
            patch.setattr(sys, "argv", ["pml-ext", *arguments])
            for name, value in {"COLUMNS": "100", **environment}.items():
                patch.setenv(name, value)
            try:
                main()
                code = 0
            except SystemExit as left:
                code = int(left.code or 0)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def without_report() -> Iterator[None]:
    """Runs draw no report, which takes most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:  # of its own, which a test's undo() leaves alone
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], Any]], tuple[Path, Any]]:
    """Fills a folder in the first worker of pytest-xdist that asks for it: the folder, and what the filling returned.

    Tests do not change the folder, which other workers use too.
    """
    from filelock import FileLock

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def make(name: str, fill: Callable[[Path], Any]) -> tuple[Path, Any]:
        folder = place / name
        returned = place / f"{name}.pickle"
        with FileLock(place / f"{name}.lock"):
            if not returned.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker whose filling failed
                returned.write_bytes(pickle.dumps(fill(folder)))
        return folder, pickle.loads(returned.read_bytes())

    return make


@pytest.fixture(scope="session")
def runs(make_once: Callable[[str, Callable[[Path], Any]], tuple[Path, Any]]) -> tuple[Path, Path]:
    """Two runs that were trained on the digits, which tests leave as they are."""
    place, _ = make_once("runs", _train_two)
    return place / "one", place / "other"


def _train_two(place: Path) -> None:
    from pml_ext_train.launch.launch import train

    quick = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=8", "model.trunk.width=16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        for name, seed in (("one", 0), ("other", 1)):
            train("triplets/digits", out=place / name, seed=seed, overrides=typed(quick), device="cpu")


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPlugin]:
    """Puts a distribution with one module and one entry point on the path, as an installer would."""

    def install(module: str, source: str, *, entry_point: str = "", distribution: str = "", points: str = "") -> Path:
        distribution = distribution or module.replace("_", "-")
        folder = tmp_path / f"site-{distribution}"
        package = folder / module
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(textwrap.dedent(source))
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pml_ext]\n{points or f'{entry_point or module} = {module}'}\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
        installed.append(module)
        return package

    installed: list[str] = []
    yield install
    for module in installed:
        sys.modules.pop(module, None)


@pytest.fixture
def install_loss(install_plugin: InstallPlugin) -> InstallPlugin:
    """Puts a distribution with a loss on the path, ``ForeignLoss`` called ``foreign`` unless other names are given."""

    def install(module: str, class_name: str = "Foreign", name: str = "foreign", more: str = "", **named: str) -> Path:
        return install_plugin(module, PLUGIN_WITH_A_LOSS.format(class_name=class_name, name=name) + more, **named)

    return install

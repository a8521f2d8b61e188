"""Plugins of somebody else, in an environment of their own: the page for authors word by word, and an example."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from ..digit_files import write_digits

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly
SHORTER = {
    "pml-ext train": " --set schedule.epochs=2 --set schedule.milestones=[1] --set sampler.iterations=3",
    "pml-ext bench": " --shapes 64x16x4 --repeats 2",
    "pytest my-loss": " -q -p no:cacheprovider -k 'not two_processes and not compile and not fullgraph'",
}


class Environment:
    """A virtual environment beside the running one."""

    def __init__(self, place: Path) -> None:
        venv.create(place, with_pip=True)
        self.bin = place / "bin"
        packages = next((place / "lib").glob("python*/site-packages"))
        running = sysconfig.get_paths()["purelib"]
        (packages / "running.pth").write_text(f"import site; site.addsitedir({running!r})\n")
        # pip's own options: no second torch, and what builds is what is installed
        self.variables = os.environ | {
            "PATH": f"{self.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INDEX": "1",
            "VIRTUAL_ENV": str(place),
        }
        for name, module in {"pml-ext": "pml_ext", "pytest": "pytest"}.items():
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {module} "$@"\n')
            script.chmod(0o755)

    def run(self, line: str, cwd: Path, fails: bool = False) -> str:
        done = subprocess.run(line, shell=True, cwd=cwd, env=self.variables, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    pytest.importorskip("hatchling")
    return Environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.mark.timeout(3600)
def test_the_page_for_authors_works(environment, tmp_path, monkeypatch):
    """The page's commands and files, word by word and in its order; only the training and the timing are cut short."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    hour = page.partition("## A loss and a miner in ten commands\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:`(my-loss/[^`]*)`:\n\n)?```(bash|python|toml)\n(.*?)```", hour, re.S)
    commands = [line for _, language, text in blocks if language == "bash" for line in text.strip().splitlines()]
    assert len(commands) == 10
    monkeypatch.setitem(environment.variables, "PML_EXT", str(ROOT))
    for path, language, text in blocks:
        if language != "bash":
            assert (tmp_path / path).parent.is_dir(), path
            (tmp_path / path).write_text(text)
            continue
        for command in text.strip().splitlines():
            command += SHORTER.get(" ".join(command.split()[:2]), "")
            output = environment.run(command, tmp_path)
            if command.startswith("pml-ext check"):
                assert "0 failed" in output
                assert "my-miner" in output
            if command.startswith("pml-ext plugins"):
                assert "my-loss: my-loss 0.1.0, module my_loss, ok" in output
                assert "components  2" in output
    assert (tmp_path / "run" / "report.html").exists()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["plugins"] == {
        "my-loss": {"distribution": "my-loss", "version": "0.1.0"}
    }
    assert "my-loss" not in environment.run("pml-ext plugins", tmp_path)
    gone = environment.run("pml-ext report run", tmp_path, fails=True)
    assert "the plugin 'my-loss' of my-loss 0.1.0 is not installed; run: pip install my-loss==0.1.0" in gone


@pytest.mark.timeout(600)
def test_the_example_package_is_used(environment, tmp_path):
    package = tmp_path / "package"
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(ROOT / "examples" / "third_party_plugin", package, ignore=ignored)
    environment.run("pip install ./package", tmp_path)
    name = "from pml_ext import AlignmentUniformityLoss; print(AlignmentUniformityLoss.__module__)"
    assert environment.run(f'python -c "{name}"', tmp_path).strip() == "spread_out.losses"
    for command, texts in {
        "pml-ext list": ("alignment-uniformity", "spread-out/shapes"),
        "pml-ext show alignment-uniformity": ("uniformity_weight", "Wang and Isola"),
        "pml-ext bench alignment-uniformity --shapes 64x16x4 --repeats 2": ("alignment-uniformity",),
    }.items():
        printed = environment.run(command, tmp_path)
        assert all(text in printed for text in texts), printed
    environment.run("pml-ext train spread-out/shapes --out run --set schedule.epochs=3", tmp_path)
    assert "alignment" in (tmp_path / "run" / "report.html").read_text().lower()
    write_digits(tmp_path / "photos", 6)
    spread = json.loads(environment.run("pml-ext spread run photos --json", tmp_path))
    assert spread["images"] == 6
    assert -4 < spread["uniformity"] <= 0
    some = "not two_processes and not compile and not fullgraph"  # the longest three
    assert "passed" in environment.run(f"pytest -q -p no:cacheprovider -k '{some}'", package)
    environment.run("pip uninstall -y spread-out", tmp_path)
    assert "alignment-uniformity" not in environment.run("pml-ext list", tmp_path)
    assert "spread-out" not in environment.run("pml-ext plugins", tmp_path)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The wheel and the sdist."""
    pytest.importorskip("build")
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", place, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return *place.glob("*.whl"), *place.glob("*.tar.gz")


def test_releases_hold_all_needed_files(released):
    """The wheel has every file of the packages and nothing else; the sdist also has what its tests need."""
    wheel, sdist = released
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = set()
    for package in (ROOT / "pml_ext", *(ROOT / "plugins").glob("pml_ext_*")):
        files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        wanted |= {path.relative_to(package.parent).as_posix() for path in files}
    assert names == wanted
    kinds = {Path(name).suffix for name in names if not name.endswith("py.typed")}
    assert kinds == {".py", ".pyi", ".toml", ".jinja", ".html", ".js", ".css", ".md"}
    assert wheel.stat().st_size < 2 * 2**20
    with tarfile.open(sdist) as archive:
        contained = {path.parts[1] for path in map(Path, archive.getnames()) if len(path.parts) > 1}
    assert {"pml_ext", "plugins", "tests", "benchmarks", "examples", "docs", "CITATION.cff"} <= contained
    assert sdist.stat().st_size < 5 * 2**20


@pytest.mark.timeout(1800)
def test_the_wheel_outside_of_a_checkout(released, tmp_path):
    """What it needs of itself: recipes, templates of reports and of a plugin, plugins by their entry points."""
    environment = Environment(tmp_path / "venv")
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(released[0]) as archive:
        archive.extractall(packages)
    environment.variables.pop("PYTHONPATH", None)
    place = tmp_path / "elsewhere"
    place.mkdir()
    for module in ("pml_ext", "pml_ext_cbml", "pml_ext_fit"):
        printed = environment.run(f'python -c "import {module}; print({module}.__file__)"', place)
        assert Path(printed.strip()).is_relative_to(packages)
    plugins = json.loads(environment.run("pml-ext plugins --json", place))
    assert {each["status"] for each in plugins} == {"ok"}
    assert len(plugins) >= len([*(ROOT / "plugins").glob("pml_ext_*")])
    environment.run(f"pml-ext train cbml/digits --out run{SHORTER['pml-ext train']}", place)
    assert (place / "run" / "report.html").stat().st_size > 50_000
    assert json.loads((place / "run" / "metrics.json").read_text())["after"]["map_at_r"] > 0.4
    environment.run("pml-ext new-plugin my-loss", place)
    environment.run("pip install -e my-loss", place)
    assert "0 failed" in environment.run("pml-ext check my-loss --fast", place)

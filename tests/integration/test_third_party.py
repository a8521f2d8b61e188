"""Somebody else's plugin, in an environment of its own that sees the packages of the running one."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.packaging


@pytest.mark.timeout(600)
def test_a_third_partys_package(environment, tmp_path):
    package = tmp_path / "package"
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(ROOT / "examples" / "third_party_plugin", package, ignore=ignored)
    environment.run("pip install ./package", tmp_path)
    name = "from pml_ext import AlignmentUniformityLoss; print(AlignmentUniformityLoss.__module__)"
    assert environment.run(f'python -c "{name}"', tmp_path).strip() == "spread_out.losses"
    listed = environment.run("pml-ext list", tmp_path)
    assert all(wanted in listed for wanted in ("alignment-uniformity", "spread-out/shapes", "shapes"))
    shown = environment.run("pml-ext show alignment-uniformity", tmp_path)
    assert "uniformity_weight" in shown
    assert "Wang and Isola" in shown
    assert "alignment-uniformity" in environment.run(
        "pml-ext bench alignment-uniformity --shapes 64x16x4 --repeats 2", tmp_path
    )
    environment.run("pml-ext train spread-out/shapes --out run --set schedule.epochs=3", tmp_path)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "alignment" in report.lower()
    some = "not two_processes and not compile and not fullgraph"  # the longest three
    assert "passed" in environment.run(f"pytest -q -p no:cacheprovider -k '{some}'", package)
    environment.run("pip uninstall -y spread-out", tmp_path)
    assert "alignment-uniformity" not in environment.run("pml-ext list", tmp_path)
    assert "spread-out" not in environment.run("pml-ext plugins", tmp_path)

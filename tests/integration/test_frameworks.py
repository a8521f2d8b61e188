"""The examples of "Your own loop" in other frameworks: two processes train as one; the page quotes the scripts."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "frameworks"
NEEDS = {
    "in_accelerate": ("accelerate",),
    "in_lightning": ("lightning",),
    "in_sentence_transformers": ("sentence_transformers", "datasets", "accelerate"),
    "in_trainer": ("transformers", "accelerate"),
}


def printed(name, folder, processes):
    """Run a script, and return its metrics and the sum of the weights."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    environment |= {"HF_HUB_OFFLINE": "1"}
    script = [*command, str(FOLDER / f"{name}.py")]
    done = subprocess.run(script, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if " weights " in line]
    metrics, _, weights = line[line.index("{") :].partition(" weights ")
    return eval(metrics), float(weights)


@pytest.mark.slow
@pytest.mark.timeout(0)  # two processes on a busy machine take as long as they take
@pytest.mark.parametrize("name", NEEDS)
def test_two_processes_train_as_one(name, tmp_path):
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    one, weights = printed(name, tmp_path, 1)
    two, weights_of_two = printed(name, tmp_path, 2)
    assert two == pytest.approx(one, abs=2e-4)
    assert weights_of_two == pytest.approx(weights, rel=1e-5)
    assert one["recall_at_1"] > 0.6


def test_every_script_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


def test_the_page_quotes_the_scripts():
    page = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    scripts = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.py")}
    quoted = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert len(quoted) >= len(NEEDS)
    for block in quoted:
        for part in block.split("\n\n"):
            assert any(part.strip("\n") in script for script in scripts.values()), part
    assert all(f"examples/frameworks/{name}.py" in page for name in NEEDS)

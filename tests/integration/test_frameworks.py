"""The scripts that "A loss in my PML script" names: in other frameworks, two processes train as one."""

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


# One process imports what a script does, which takes most of its time otherwise; the script runs in forks of it: in one
# process, then in two that torchrun's agent starts.
LAUNCHER = """
import ast, gc, os, runpy, sys
from pathlib import Path
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

(script,) = sys.argv[1:]
tree = ast.parse(Path(script).read_text("utf-8"))
imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
exec(compile(ast.Module(imports, []), script, "exec"), {})

def work():
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()

gc.freeze()  # the forks' collectors would copy the memory of all that was imported
child = os.fork()
if child == 0:
    work()
    os._exit(0)  # an error has left before, with its traceback
assert os.waitpid(child, 0)[1] == 0
where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test"}
elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **where), work)()
"""


def printed(name, folder):
    """The metrics and the sum of the weights of a script in one process, and in two."""
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", LAUNCHER, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if " weights " in line]
    assert len(lines) == 2, done.stdout
    found = []
    for line in lines:
        metrics, _, weights = line[line.index("{") :].partition(" weights ")
        found.append((eval(metrics), float(weights)))
    return found


@pytest.mark.slow
@pytest.mark.timeout(0)  # two processes on a busy machine take as long as they take
@pytest.mark.parametrize("name", NEEDS)
def test_two_processes_train_as_one(name, tmp_path):
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    (one, weights), (two, weights_of_two) = printed(name, tmp_path)
    assert two == pytest.approx(one, abs=2e-4)
    assert weights_of_two == pytest.approx(weights, rel=1e-5)
    assert one["recall_at_1"] > 0.6


def test_every_example_script_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


def test_the_page_names_the_scripts_and_their_settings():
    page = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \| `examples/frameworks/(\w+)\.py` \| (.*) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(NEEDS)
    for name, advice in rows:
        script = (FOLDER / f"{name}.py").read_text("utf-8")
        assert all(code in script for code in re.findall(r"`([^`]+)`", advice)), name

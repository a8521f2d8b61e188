"""A command that is killed and repeated leaves the files of one that nobody killed.

These are the files of the folders that it writes, of the cache of features and of the folder of temporary files.
"""

import os
import shutil
import signal
import sys
import tempfile
import time

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from . import kills

pytest.importorskip("torchvision")
CLASSES = 24  # of which twelve train: the fewest on which fit tries its candidates
EACH = 6  # images of a class
SETTINGS = ("schedule.epochs=2", "sampler.iterations=3", "data.split=class", "evaluation.figures=few")
FIT = ["fit", "IMAGES", "--device", "cpu", "--out", "RUN", *(f"--set={setting}" for setting in SETTINGS)]
INDEX = ["index", "RUN", "IMAGES", "--device", "cpu"]
QUERY = ["query", "RUN", "IMAGES", "-o", "OUT/answers.jsonl", "--device", "cpu"]


def write_digits(folder):
    """Write digits of scikit-learn as PNG files of 32 x 32 pixels: a class for each digit and one for some in bold."""
    digits = load_digits()
    for label in range(CLASSES):
        place = folder / f"class{label:02d}"
        place.mkdir(parents=True)
        chosen = np.flatnonzero(digits.target == label % 10)[EACH * (label // 10) :][:EACH]
        for number in chosen.tolist():
            pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(place / f"{number}.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    place = tmp_path_factory.mktemp("digits") / "images"
    write_digits(place)
    return place


def do(line, place, images, **settings):
    """Do a command in a process of its own whose files all lie below ``place``; return how it has ended."""
    from pml_ext_train.cli import main

    def work():
        os.environ |= {"XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place / "temporary")}
        tempfile.tempdir = None  # this process has asked for it before
        folders = {"IMAGES": images, "RUN": place / "run", "OUT/answers.jsonl": place / "out" / "answers.jsonl"}
        sys.argv = ["pml-ext", *(str(folders.get(word, word)) for word in line)]
        main()

    (place / "temporary").mkdir(parents=True, exist_ok=True)
    return kills.in_a_fork(work, **settings)


@pytest.mark.parametrize(
    ("before", "line", "again"), [([], FIT, ["--resume"]), ([FIT, INDEX], QUERY, [])], ids=["fit", "query -o"]
)
def test_a_killed_command_leaves_nothing(tmp_path, images, before, line, again):
    log = tmp_path / "moments.txt"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for each in before:
        assert do(each, whole, images) == 0
    if before:
        shutil.copytree(whole, killed)
    assert do(line, whole, images, log=log) == 0
    moments = log.read_text().splitlines()
    assert do(line, killed, images, at=len(moments) // 3 + 1) == -signal.SIGKILL
    time.sleep(1)  # TensorBoard reads files of events by the second that they began in
    assert do([*line, *again], killed, images) == 0
    assert kills.difference(whole, killed) == ""

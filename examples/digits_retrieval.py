"""Train on digits, write digit images to a folder, then index, query and cluster it; all of it takes half a minute.

The same from the command line: ``pml-ext train triplets/digits --out RUN``, ``pml-ext index RUN FOLDER``,
``pml-ext query RUN IMAGE -k 8``, ``pml-ext cluster RUN FOLDER --clusters 10``.
"""

import collections
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext import load_run, train

with tempfile.TemporaryDirectory() as work:
    digits = load_digits()
    folder = Path(work) / "images"
    for number in range(0, len(digits.images), 3):  # files in a sub-folder per class
        file = folder / str(digits.target[number]) / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 255 / 16).round().astype(np.uint8)).save(file)

    train("triplets/digits", out=Path(work) / "run", overrides={"schedule.epochs": 8, "schedule.milestones": [6]})
    run = load_run(Path(work) / "run")
    gallery = run.index(folder)
    print(f"{len(gallery.embedded.paths)} images indexed")

    queries = [next(iter(sorted((folder / str(digit)).glob("*.png")))) for digit in range(10)]
    answers = run.query(queries, k=8)
    right = sum(name == answer.query_class for answer in answers for name in answer.classes)
    print(f"{right} of {8 * len(answers)} answers are the digit that was asked for")
    assert right > 64, right
    run.picture(answers).savefig(Path(work) / "answers.png")

    clusters = run.cluster(folder, clusters=10)
    counts: dict[int, collections.Counter[str]] = {}
    for path, number in clusters.items():
        counts.setdefault(number, collections.Counter())[path[0]] += 1
    pure = sum(counter.most_common(1)[0][1] for counter in counts.values()) / len(clusters)
    print(f"10 clusters, {100 * pure:.0f} % of the images with the most frequent digit of their cluster")
    assert pure > 0.7, pure

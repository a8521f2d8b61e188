"""What a run says of queries that can have no right answer, and of tests that measure nothing."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from pml_ext_train.launch.launch import train

from ....overrides import typed

SETTINGS = ["schedule.epochs=1", "sampler.batch_size=32", "sampler.iterations=2", "data.image_size=8"]
TRAINED = [6] * 8  # images of each class


def run_on(folder, tested):
    """Train a small network on made-up images and test it on classes of so many; return its metrics and report."""
    generator = np.random.default_rng(0)
    for part, sizes in (("train", TRAINED), ("test", tested)):
        for number, size in enumerate(sizes):
            place = folder / "images" / part / f"{part}{number:02}"
            place.mkdir(parents=True)
            center = generator.uniform(0, 150, size=(8, 8))
            for image in range(size):
                pixels = center + generator.uniform(0, 100, size=(8, 8))
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{image}.png")
    train("cbml/digits", folder / "run", overrides=typed([f"data.name=folder:{folder / 'images'}", *SETTINGS]))
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    return metrics, (folder / "run" / "report.html").read_text()


def test_queries_without_an_answer_are_not_counted(tmp_path):
    metrics, report = run_on(tmp_path, [7] * 7 + [1] * 9)
    assert metrics["images"]["test"] == {"images": 58, "classes": 16}
    assert metrics["without_answer"] == {"queries": 9, "classes": [f"test{number:02}" for number in range(7, 16)]}
    assert metrics["queries"]["recall_at_1"] == metrics["queries"]["precision_at_1"] == 49
    assert metrics["queries"]["nmi"] == 58
    assert metrics["blank"] == {}
    recall = metrics["after"]["recall_at_1"]
    assert recall == metrics["after"]["precision_at_1"]
    assert (recall * 49) == pytest.approx(round(recall * 49))
    by_class = [*metrics["recall_at_1_by_class"].values()]
    assert (by_class, len(by_class)) == (sorted(by_class), 7)
    headline = report.split('<p class="headline">')[1].split("</p>")[0]
    assert f"is right for {100 * recall:.0f}\N{NO-BREAK SPACE}% of the 49 queries that have a right answer" in headline
    left_out = "9 of 58 queries have none and are not counted: classes test07, test08, test09, test10, test11, ..."
    assert left_out in headline
    assert "Shares are over different numbers: " in report


@pytest.mark.parametrize(
    ("tested", "reason", "of_clusters"),
    [
        (
            [1] * 12,
            "none of the 12 queries has another item of its class in the gallery",
            "12 clusters of 12 queries have one each",
        ),
        ([8], "every item of the gallery is right", "all 8 queries have one class, so that no cluster can be wrong"),
    ],
)
def test_tests_that_measure_nothing_are_blank(tmp_path, tested, reason, of_clusters):
    metrics, report = run_on(tmp_path, tested)
    assert all(math.isnan(value) for value in metrics["after"].values())
    assert of_clusters in metrics["blank"]["nmi"]
    warned = " ".join(metrics["warnings"])
    for text in ("Recall@1", reason, of_clusters):
        assert text in warned
    assert f"nothing can be said about the nearest image: {reason}" in report
    assert "<td>nan" not in report

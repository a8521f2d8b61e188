"""The learned metric in PML's trainer, and in whole runs: tested, saved, resumed, searched by."""

import json

import pytest
import torch
from sklearn.datasets import load_digits

from pml_ext import load_run
from pml_ext.experiment import train

QUICK = (
    "schedule.epochs=4",
    "schedule.milestones=[3]",
    "sampler.iterations=20",
    "model.trunk.width=16",
    "sampler.m=3",
    "sampler.batch_size=30",
    'stages=[{epochs=2, loss={name="pml/triplet-margin"}}]',
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, train("pddm/digits", out=out, overrides=QUICK, device="cpu")[0]


def test_is_tested_by_features_by_score_and_by_a_shortlist(finished):
    out, metrics = finished
    for phase in ("after", "learned_metric", "shortlist"):
        assert metrics[phase]["recall_at_1"] > 0.6
        assert 0 < metrics[phase]["map_at_r"] <= metrics[phase]["r_precision"] < 1
    assert metrics["shortlist"] != metrics["learned_metric"] != metrics["after"]
    report = (out / "report.html").read_text()
    for text in ("learned metric on a shortlist", "Learned scores beside cosine"):
        assert text in report
    recorded = json.loads((out / "metrics.json").read_text())
    assert recorded["learned_metric"] == metrics["learned_metric"]


def test_the_head_trains_with_an_optimizer_of_its_own_and_is_saved(finished):
    out, _ = finished
    state = torch.load(out / "checkpoints" / "last.pt", weights_only=False)
    parts = state["parts"]
    assert "stage 1 optimizer" not in parts
    own = parts["stage 2 optimizer"]
    (group,) = own["param_groups"]
    assert group["weight_decay"] == 3e-3
    assert group["lr"] == pytest.approx(1e-3)  # of 1e-2, since epoch 3 was a milestone of the networks too
    assert parts["trunk_optimizer"]["param_groups"][0]["lr"] == pytest.approx(1e-4)
    assert all(int(entry["step"]) == 40 for entry in own["state"].values())
    saved = torch.load(out / "checkpoints" / "model.pt")["loss"]
    run = load_run(out, "cpu")
    for name, value in run.metric.state_dict().items():
        assert torch.equal(value, saved[f"distance.{name}"])


def test_queries_by_the_learned_metric(finished, tmp_path):
    from PIL import Image

    out, _ = finished
    digits = load_digits()
    for number in range(60):
        path = tmp_path / "images" / str(digits.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15.9).astype("uint8")).save(path)
    run = load_run(out, "cpu")
    gallery = run.index(tmp_path / "images")
    query = tmp_path / "images" / gallery.embedded.paths[3]
    found = run.query(query, 5, metric="learned")[0]
    points = gallery.embedded.embeddings
    with torch.no_grad():
        scores = run.metric.eval()(points[3:4], points)[0]
    scores[3] = -torch.inf
    assert found.distances == pytest.approx(scores.sort(descending=True).values[:5].tolist(), abs=1e-5)
    exact = run.query(query, 5, metric="learned", shortlist=len(gallery.embedded.paths))[0]
    assert exact.distances == pytest.approx(found.distances, abs=1e-5)

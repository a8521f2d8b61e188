"""The learned metric in PML's trainer, and in whole runs: tested, saved, resumed, searched by."""

import json

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.trainers import MetricLossOnly
from sklearn.datasets import load_digits

from pml_ext import PDDMDistance, RetrievalAccuracyCalculator, load_run
from pml_ext.evaluation import neighbors_under
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


def test_as_the_distance_of_a_loss_and_a_miner_of_pml_in_its_trainer():
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    trunk = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))
    metric = PDDMDistance(32, dropout=0.1)
    calculator = RetrievalAccuracyCalculator(
        include=("mean_average_precision_at_r",), k="max_bin_count", knn_func=neighbors_under(metric)
    )

    def by_score():
        with torch.no_grad():
            return calculator.get_accuracy(trunk(images[1::4]), labels[1::4])["mean_average_precision_at_r"]

    before, weights = by_score(), metric.difference.weight.detach().clone()
    MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.Adam([*trunk.parameters(), *metric.parameters()], lr=1e-3)},
        batch_size=80,
        loss_funcs={"metric_loss": TripletMarginLoss(margin=0.5, distance=metric)},
        mining_funcs={"tuple_miner": BatchHardMiner(distance=metric)},
        dataset=torch.utils.data.TensorDataset(images[0::2], labels[0::2]),
        sampler=MPerClassSampler(labels[0::2], m=8, batch_size=80, length_before_new_iter=80 * 50),
        dataloader_num_workers=0,
    ).train(num_epochs=2)
    assert not torch.equal(metric.difference.weight, weights)
    assert by_score() > before + 0.3


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
    for text in ("by the learned metric", "among a shortlist by cosine similarity", "Learned scores beside cosine"):
        assert text in report
    assert (out / "figures" / "queries-and-their-nearest-test-images-by-the-learned-metric.png").exists()
    assert sum("a class of the batch has 3 images" in text for text in metrics["warnings"]) == 1
    recorded = json.loads((out / "metrics.json").read_text())
    assert recorded["learned_metric"] == metrics["learned_metric"]


def test_the_head_trains_with_an_optimizer_of_its_own_and_is_saved(finished):
    out, _ = finished
    state = torch.load(out / "checkpoints" / "last.pt", weights_only=False)
    warm, own = state["stages"]
    assert warm["optimizer"] is None
    (group,) = own["optimizer"]["param_groups"]
    assert group["weight_decay"] == 3e-3
    assert group["lr"] == pytest.approx(1e-3)  # of 1e-2, since epoch 3 was a milestone of the networks too
    assert state["optimizers"]["trunk_optimizer"]["param_groups"][0]["lr"] == pytest.approx(1e-4)
    assert all(int(entry["step"]) == 40 for entry in own["optimizer"]["state"].values())
    saved = torch.load(out / "checkpoints" / "model.pt")["loss"]
    run = load_run(out, "cpu")
    for name, value in run.metric.state_dict().items():
        assert torch.equal(value, saved[f"distance.{name}"])


@pytest.mark.usefixtures("without_report")
def test_a_resumed_run_ends_as_one_that_was_not_stopped(finished, tmp_path, monkeypatch):
    from pml_ext.experiment import checkpoint

    saved = checkpoint.save_last

    def stop_after_three(path, state):
        saved(path, state)
        if state["epoch"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_last", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        train("pddm/digits", out=tmp_path / "out", overrides=QUICK, device="cpu")
    monkeypatch.undo()
    metrics = train("pddm/digits", out=tmp_path / "out", overrides=QUICK, device="cpu", resume=True)[0]
    for phase in ("after", "learned_metric", "shortlist"):
        assert metrics[phase] == finished[1][phase]


def test_queries_by_the_learned_metric(finished, tmp_path):
    from PIL import Image

    out, _ = finished
    digits = load_digits()
    for number in range(60):
        path = tmp_path / "images" / str(digits.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15.9).astype("uint8")).save(path)
    run = load_run(out, "cpu")
    gallery = run.index(tmp_path / "images", tmp_path / "index")
    query = tmp_path / "images" / gallery.embedded.paths[3]
    found = run.query(query, 5, gallery, metric="learned")[0]
    points = gallery.embedded.embeddings
    with torch.no_grad():
        scores = run.metric.eval()(points[3:4], points)[0]
    scores[3] = -torch.inf
    assert found.distances == pytest.approx(scores.sort(descending=True).values[:5].tolist(), abs=1e-5)
    exact = run.query(query, 5, gallery, metric="learned", shortlist=len(gallery.embedded.paths))[0]
    assert exact.distances == pytest.approx(found.distances, abs=1e-5)

"""The learned metric in PML's trainer, and in whole runs: tested, saved, resumed, searched by."""

import json

import pytest
import torch

from pml_ext import load_run
from pml_ext_train.launch.launch import train

from ...overrides import typed

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
    return out, train("pddm/digits", out=out, overrides=typed(QUICK), device="cpu")[0]


@pytest.mark.nightly
def test_run_is_tested_by_score_and_shortlist(finished):
    out, metrics = finished
    for phase in ("after", "learned_metric", "shortlist"):
        assert metrics[phase]["recall_at_1"] > 0.6
        assert 0 < metrics[phase]["map_at_r"] <= metrics[phase]["r_precision"] < 1
    assert metrics["shortlist"] != metrics["learned_metric"] != metrics["after"]
    report = (out / "report.html").read_text()
    for text in ("learned metric on a shortlist", "Learned scores beside cosine"):
        assert text in report
    assert json.loads((out / "metrics.json").read_text())["learned_metric"] == metrics["learned_metric"]


@pytest.mark.nightly
def test_head_trains_with_its_own_optimizer(finished):
    out, _ = finished
    parts = torch.load(out / "checkpoints" / "last.pt", weights_only=False)["parts"]
    assert "stage 1 optimizer" not in parts
    own = parts["stage 2 optimizer"]
    (group,) = own["param_groups"]
    assert group["weight_decay"] == 3e-3
    assert group["lr"] == pytest.approx(1e-3)  # of 1e-2, since epoch 3 was a milestone of the networks too
    assert parts["trunk_optimizer"]["param_groups"][0]["lr"] == pytest.approx(1e-4)
    assert all(int(entry["step"]) == 40 for entry in own["state"].values())
    saved = torch.load(out / "checkpoints" / "model.pt")["loss"]
    for name, value in load_run(out, "cpu").metric.state_dict().items():
        assert torch.equal(value, saved[f"distance.{name}"])

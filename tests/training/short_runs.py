"""Short runs on digits, for tests that compare their weights."""

import json

import torch

from pml_ext.training.launch import train

SHORT = ["evaluation.training_images=0", "schedule.epochs=5", "schedule.milestones=[4]"]
SHORT += ["sampler.iterations=20", "model.trunk.width=8", "model.trunk.weights=random"]


def finished(folder, *overrides, seed=0):
    train("cbml/digits", overrides=[*SHORT, *overrides], out=folder, seed=seed)
    state = torch.load(folder / "checkpoints" / "model.pt", weights_only=True)
    return state, json.loads((folder / "metrics.json").read_text())

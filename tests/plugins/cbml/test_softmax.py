"""The classifier of Fig. 2 against a loop, and a run whose trunk's features are what is tested."""

import functools
import json

import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext.testing import check_component
from pml_ext_cbml.softmax import SoftmaxLoss
from pml_ext_train.launch.launch import train

from ...overrides import typed


def reference(embeddings, labels, component, class_labels=None):
    weight = component.classifier.weight.double()
    bias = component.classifier.bias.double()
    classes = list(range(component.num_classes)) if class_labels is None else list(class_labels)
    total = 0 * embeddings.sum()
    for x, label in zip(embeddings, labels.tolist(), strict=True):
        logits = [(w * x).sum() + b for w, b in zip(weight, bias, strict=True)]
        total = total - logits[classes.index(label)] + sum(torch.exp(value) for value in logits).log()
    return total / len(embeddings)


def test_softmax_loss_equals_a_slow_loop():
    settings = [{"class_labels": [None, [3, 1, 0, 2, 9, 8, 7, 6, 5, 4]]}]
    checks = ["check_reference", "check_settings"]
    check_component(SoftmaxLoss, reference=reference, settings=settings, num_classes=10, checks=checks)


@pytest.mark.usefixtures("without_report")
def test_the_trunks_features_are_tested(tmp_path):
    quick = [f"schedule.{each}" for each in ("epochs=2", "milestones=[1]")] + [
        "sampler.iterations=3",
        "loss.name=softmax",
    ]
    quick += ["model.trunk={name='convnet', width=8, blocks=2}", "evaluation.baselines=false", "model.embedder=none"]
    run = functools.partial(train, "cbml/digits", device="cpu")
    with pytest.raises(ConfigError, match="wanted embedding_size = (?P<features>[0-9]+), not 5") as refused:
        run(out=tmp_path / "refused", overrides=typed((*quick, "model.embedding_size=5")))
    size = int(str(refused.value).rpartition("embedding_size = ")[2].partition(",")[0])
    out = tmp_path / "out"
    run(out=out, overrides=typed((*quick, f"model.embedding_size={size}")))
    state = torch.load(out / "checkpoints" / "model.pt", weights_only=True)
    assert state["embedder"] == {}
    assert state["loss"]["classifier.weight"].shape[1] == size
    assert json.loads((out / "network.json").read_text())["features"] == size
    images = torch.randint(0, 255, (2, 1, 8, 8), dtype=torch.uint8)
    assert load_run(out).embed(list(images)).shape == (2, size)

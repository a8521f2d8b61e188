"""On a GPU: values and gradients of the CPU, steps that do not wait for it, whole runs, retrieval."""

import copy
import json

import pytest
import torch

from pml_ext import (
    CachedGradients,
    CBMLLoss,
    CrossBatchMemory,
    RetrievalAccuracyCalculator,
    TiledMultiSimilarityLoss,
    load_run,
)
from pml_ext_train.launch.launch import train
from pml_ext_train.training.listener import Silence

from ..digit_files import write_digits
from ..losses.registered import registered
from ..overrides import typed
from ..plugins.train.training.whole_runs import QUICK, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees by CUDA"),
]

LOSSES = registered()


def batch(size=48, dtype=torch.float64):
    embeddings = torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return embeddings, torch.arange(size) // 4 % 6


def value_and_gradients(loss, embeddings, labels):
    x = embeddings.clone().requires_grad_()
    torch.manual_seed(0)
    value = loss(x, labels)
    value.backward()
    slopes = [torch.zeros_like(each) if each.grad is None else each.grad for each in (x, *loss.parameters())]
    return [value.detach().cpu(), *(slope.cpu() for slope in slopes)]


@pytest.mark.parametrize("tile_size", [None, 7])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_values_of_the_cpu(name, tile_size):
    loss = copy.deepcopy(LOSSES[name]).double().eval()  # dropout draws other numbers on a GPU
    if tile_size is not None:
        if not hasattr(loss, "tile_size"):
            pytest.skip("it has no tiles")
        loss.tile_size = tile_size
    embeddings, labels = batch()
    expected = value_and_gradients(copy.deepcopy(loss), embeddings, labels)
    actual = value_and_gradients(loss.cuda(), embeddings.cuda(), labels.cuda())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make", [CBMLLoss, TiledMultiSimilarityLoss])
def test_a_step_does_not_wait_for_the_gpu(make):
    loss = make().cuda()
    embeddings, labels = batch(512, torch.float32)
    x = embeddings.cuda().requires_grad_()
    labels = labels.cuda()
    loss(x, labels).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss(x, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["cbml", "n-pair-angular", "batch-all-triplets"])
def test_a_compiled_loss_has_the_same_values(name):
    loss = copy.deepcopy(LOSSES[name]).cuda()
    embeddings, labels = batch(dtype=torch.float32)
    expected = value_and_gradients(loss, embeddings.cuda(), labels.cuda())
    actual = value_and_gradients(torch.compile(loss), embeddings.cuda(), labels.cuda())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_memories_and_micro_batches_agree_with_cpus():
    outcomes = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        network = torch.nn.Linear(4, 4).double().to(device)
        step = CachedGradients(network, CrossBatchMemory(CBMLLoss(), 4, 96).double().to(device), micro_batch=16)
        values = []
        for shift in range(3):
            embeddings, labels = batch()
            value = step((embeddings + shift).to(device), labels.to(device))
            value.backward()
            values.append(value.detach().cpu())
        outcomes.append([*values, network.weight.grad.cpu()])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-9, atol=1e-11)


def test_the_calculator_has_the_values_of_the_cpu():
    embeddings, labels = batch(600)
    include = ("precision_at_1", "mean_average_precision_at_r", "mean_reciprocal_rank")
    found = []
    for device in ("cpu", "cuda"):
        calculator = RetrievalAccuracyCalculator(include=include, device=torch.device(device))
        found.append(calculator.get_accuracy(embeddings.to(device), labels.to(device)))
    assert found[1] == pytest.approx(found[0], abs=1e-12)


class EndsAfterTwoEpochs(Silence):
    def step(self, text):
        if text.startswith("epoch 2"):
            raise KeyboardInterrupt


@pytest.mark.usefixtures("without_report")
def test_a_run_goes_on_where_it_was_interrupted(tmp_path):
    def run(name, **settings):
        overrides = [*QUICK, "engine.deterministic=true"]
        return train("cbml/digits", tmp_path / name, overrides=typed(overrides), device="cuda", **settings)[0]

    with pytest.raises(KeyboardInterrupt):
        run("interrupted", listener=EndsAfterTwoEpochs())
    assert same(run("interrupted", resume=True), run("whole"))


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_runs_agree_with_the_cpu(tmp_path, precision):
    overrides = typed([f'engine.precision="{precision}"'])
    (metrics,) = train("cbml/digits", tmp_path / "run", overrides=overrides, device="cuda")
    assert metrics["device"].startswith("cuda")
    assert metrics["after"]["map_at_r"] > max(0.85, metrics["raw"]["map_at_r"] + 0.25)


@pytest.mark.usefixtures("without_report")
def test_folder_queries_agree_with_the_cpu(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    train("cbml/digits", tmp_path / "run", overrides=typed(QUICK), device="cuda")
    folder = write_digits(tmp_path / "images", 40, classes=4)
    answers = {}
    for device in ("cpu", "cuda"):
        run = load_run(tmp_path / "run", device, store=tmp_path / device)
        run.index(folder)
        run.match(folder, tmp_path / f"{device}.jsonl", k=3)
        lines = map(json.loads, (tmp_path / f"{device}.jsonl").read_text().splitlines())
        answers[device] = {line["query"]: torch.tensor(line["distances"]) for line in lines}
    torch.testing.assert_close(answers["cuda"], answers["cpu"], rtol=0, atol=1e-3)

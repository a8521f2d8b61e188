"""PML's trainer and tester with PML's hooks, record-keeper and TensorBoard."""

import torch
from pytorch_metric_learning import losses, miners, testers, trainers
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils import logging_presets

from pml_ext import (
    CrossBatchMemory,
    PDDMDistance,
    RetrievalAccuracyCalculator,
)

SIZE = 6


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 5
    return torch.utils.data.TensorDataset(torch.randn(60, 4, generator=generator) + labels[:, None], labels)


def trainer_of(hooks, loss, miner=None, end_of_epoch_hook=None):
    torch.manual_seed(0)
    trunk = torch.nn.Linear(4, SIZE)
    trained = {"trunk_optimizer": trunk, "metric_loss_optimizer": loss}
    dataset = images()
    return trainers.MetricLossOnly(
        models={"trunk": trunk, "embedder": torch.nn.Identity()},
        optimizers={name: torch.optim.SGD(module.parameters(), lr=0.01) for name, module in trained.items()},
        batch_size=20,
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miner} if miner is not None else {},
        dataset=dataset,
        sampler=MPerClassSampler(dataset.tensors[1], m=4, batch_size=20, length_before_new_iter=60),
        dataloader_num_workers=0,
        end_of_iteration_hook=hooks.end_of_iteration_hook,
        end_of_epoch_hook=end_of_epoch_hook,
    )


def test_pml_hooks_use_our_primary_metric(tmp_path):
    """Trainer, tester and hooks; the best model by Recall@1; PML's own way of loading what was saved."""
    record_keeper, _, _ = logging_presets.get_record_keeper(str(tmp_path / "records"), str(tmp_path / "tensorboard"))
    hooks = logging_presets.get_hook_container(record_keeper, log_freq=1, primary_metric="recall_at_1")
    calculator = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), k="max_bin_count")
    tester = testers.GlobalEmbeddingSpaceTester(
        end_of_testing_hook=hooks.end_of_testing_hook, accuracy_calculator=calculator, dataloader_num_workers=0
    )
    models = tmp_path / "models"
    end_of_epoch = hooks.end_of_epoch_hook(tester, {"val": images(1)}, str(models), patience=5)
    loss = CrossBatchMemory(losses.TripletMarginLoss(distance=PDDMDistance(SIZE)), SIZE, 40)
    trainer_of(hooks, loss, miners.MultiSimilarityMiner(), end_of_epoch).train(num_epochs=2)
    history = hooks.get_accuracy_history(tester, "val", metrics=["recall_at_1", "recall_at_4", "r_precision"])
    assert history["epoch"] == [1, 2]
    assert all(0 < value <= 1 for value in history["recall_at_4_level0"])
    assert {path.name for path in models.iterdir()} >= {"trunk_2.pth", "metric_loss_2.pth", "tuple_miner_2.pth"}

    twin = CrossBatchMemory(losses.TripletMarginLoss(distance=PDDMDistance(SIZE)), SIZE, 40)
    assert hooks.load_latest_saved_models(trainer_of(hooks, twin), str(models)) == 3
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in loss.state_dict().items())
    assert twin.filled == 40

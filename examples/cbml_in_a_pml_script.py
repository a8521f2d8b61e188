"""A plain pytorch-metric-learning script: its trainer, sampler and accuracy calculator, with a loss from pml_ext.

Run it with ``python examples/cbml_in_a_pml_script.py``; it takes a few seconds and needs no network.
"""

import logging

import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.trainers import MetricLossOnly
from sklearn.datasets import load_digits

from pml_ext import CBMLLoss, RetrievalAccuracyCalculator

logging.basicConfig(level=logging.WARNING)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
train = torch.utils.data.TensorDataset(images[0::2], labels[0::2])
test = torch.utils.data.TensorDataset(images[1::2], labels[1::2])

trunk = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU())
embedder = torch.nn.Linear(256, 32)
tester = GlobalEmbeddingSpaceTester(
    dataloader_num_workers=0, accuracy_calculator=RetrievalAccuracyCalculator(recall_at=(1, 2, 4, 8))
)


def accuracies() -> dict[str, float]:
    found = tester.test({"test": test}, 0, trunk, embedder)["test"]
    return {name.removesuffix("_level0"): value for name, value in found.items()}


before = accuracies()
MetricLossOnly(
    models={"trunk": trunk, "embedder": embedder},
    optimizers={
        "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=1e-3),
        "embedder_optimizer": torch.optim.Adam(embedder.parameters(), lr=1e-3),
    },
    batch_size=80,
    loss_funcs={"metric_loss": CBMLLoss()},
    dataset=train,
    sampler=MPerClassSampler(labels[0::2], m=8, batch_size=80, length_before_new_iter=80 * 20),
    dataloader_num_workers=0,
).train(num_epochs=10)
after = accuracies()

for name in ("recall_at_1", "mean_average_precision_at_r", "NMI"):
    print(f"{name:30}{100 * before[name]:6.1f} % -> {100 * after[name]:5.1f} %")
assert after["mean_average_precision_at_r"] > before["mean_average_precision_at_r"] + 0.2

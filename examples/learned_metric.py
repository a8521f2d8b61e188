"""A learned metric (PDDM) in pytorch-metric-learning's trainer: as the distance of its triplet loss and of its miner.

Run it with ``python examples/learned_metric.py``; it takes a few seconds and needs no network.
"""

import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.datasets import load_digits

from pml_ext import PDDMDistance, RetrievalAccuracyCalculator

torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
train = torch.utils.data.TensorDataset(images[0::2], labels[0::2])

trunk = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))
metric = PDDMDistance(embedding_size=32, dropout=0.1)
loss = TripletMarginLoss(margin=0.5, distance=metric)  # violations are measured by learned scores
miner = BatchHardMiner(distance=metric)  # hardest positives and negatives by learned scores


@torch.no_grad()
def accuracies() -> dict[str, float]:
    trunk.eval()
    metric.eval()
    embeddings = trunk(images[1::2])
    calculator = RetrievalAccuracyCalculator(
        include=("recall_at_1", "mean_average_precision_at_r"), k="max_bin_count", knn_func=CustomKNN(metric)
    )
    return calculator.get_accuracy(embeddings, labels[1::2])


before = accuracies()
MetricLossOnly(
    models={"trunk": trunk},
    optimizers={"trunk_optimizer": torch.optim.Adam([*trunk.parameters(), *metric.parameters()], lr=1e-3)},
    batch_size=80,
    loss_funcs={"metric_loss": loss},
    mining_funcs={"tuple_miner": miner},
    dataset=train,
    sampler=MPerClassSampler(labels[0::2], m=8, batch_size=80, length_before_new_iter=80 * 50),
    dataloader_num_workers=0,
).train(num_epochs=6)
after = accuracies()

for name, value in after.items():
    print(f"by the learned score, {name:30}{100 * before[name]:6.1f} % -> {100 * value:5.1f} %")
assert after["mean_average_precision_at_r"] > before["mean_average_precision_at_r"] + 0.2

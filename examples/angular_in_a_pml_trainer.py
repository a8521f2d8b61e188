"""N-pair and angular loss together in pytorch-metric-learning's trainer, on batches of many classes x 2 images.

Run it with ``python examples/angular_in_a_pml_trainer.py``; it takes a few seconds and needs no network.
"""

import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.trainers import MetricLossOnly
from sklearn.datasets import load_digits

from pml_ext import NPairAngularLoss, RetrievalAccuracyCalculator

torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
train = torch.utils.data.TensorDataset(images[0::2], labels[0::2])

trunk = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))
loss = NPairAngularLoss(alpha=45, angular_weight=2, collect_stats=True)
calculator = RetrievalAccuracyCalculator(include=("recall_at_1", "mean_average_precision_at_r"), k="max_bin_count")


@torch.no_grad()
def accuracies() -> dict[str, float]:
    embeddings = torch.nn.functional.normalize(trunk.eval()(images[1::2]))
    return calculator.get_accuracy(embeddings, labels[1::2])


before = accuracies()
MetricLossOnly(
    models={"trunk": trunk},
    optimizers={"trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=1e-3)},
    batch_size=20,
    loss_funcs={"metric_loss": loss},
    dataset=train,
    sampler=MPerClassSampler(labels[0::2], m=2, batch_size=20, length_before_new_iter=20 * 50),
    dataloader_num_workers=0,
).train(num_epochs=10)
after = accuracies()

for name, value in after.items():
    print(f"{name:30}{100 * before[name]:6.1f} % -> {100 * value:5.1f} %")
print(f"average angle at the negative {float(loss.average_angle):.1f} degrees, {float(loss.over_alpha):.1%} over alpha")
assert after["mean_average_precision_at_r"] > before["mean_average_precision_at_r"] + 0.2

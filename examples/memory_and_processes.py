"""A cross-batch memory around a regularized loss in PML's trainer, as one process or several.

Run it as ``python memory_and_processes.py`` or ``torchrun --nproc-per-node 2 memory_and_processes.py``: with several
processes each trains on its part of every batch, and the loss is that of the joined batch.
"""

import logging
import os

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.trainers import MetricLossOnly
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pml_ext import CrossBatchMemory, DistributedLoss, MetricVarianceRegularizer, RegularizedLoss

logging.getLogger("PML").setLevel(logging.WARNING)
several = int(os.environ.get("WORLD_SIZE", "1")) > 1
if several:
    dist.init_process_group("gloo")
rank, processes = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
torch.manual_seed(rank)

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)
mine = torch.arange(len(images)) % processes == rank  # every process has its own images
dataset = torch.utils.data.TensorDataset(images[mine], labels[mine])

trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
embedder = nn.Linear(128, 32)
if several:
    trunk = DistributedDataParallel(trunk)
    embedder = DistributedDataParallel(embedder)
loss = RegularizedLoss(losses.ContrastiveLoss(), MetricVarianceRegularizer(), weight=0.5)
loss = DistributedLoss(CrossBatchMemory(loss, embedding_size=32, memory_size=512))

trainer = MetricLossOnly(
    models={"trunk": trunk, "embedder": embedder},
    optimizers={
        f"{name}_optimizer": torch.optim.Adam(module.parameters(), lr=1e-3)
        for name, module in (("trunk", trunk), ("embedder", embedder))
    },
    batch_size=40,
    loss_funcs={"metric_loss": loss},
    dataset=dataset,
    sampler=MPerClassSampler(labels[mine], m=4, batch_size=40, length_before_new_iter=400),
    dataloader_num_workers=0,
)
trainer.train(num_epochs=3)
print(f"rank {rank} of {processes}: the memory holds {loss.loss.filled} embeddings")
if several:
    dist.destroy_process_group()

"""Loss, miner, memory and calculator in Lightning: ``python in_lightning.py``, or by ``torchrun``."""

import os

import lightning
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from pml_ext import CrossBatchMemory, DistributedBatchSampler, DistributedLoss, RetrievalAccuracyCalculator

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
training = TensorDataset(images[::2], labels[::2])
tested = TensorDataset(images[1::2], labels[1::2])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
        memory = CrossBatchMemory(
            MultiSimilarityLoss(), embedding_size=32, memory_size=512, miner=MultiSimilarityMiner()
        )
        self.loss = DistributedLoss(memory)  # over the batches of all processes
        self.calculator = RetrievalAccuracyCalculator(("recall_at_1", "mean_average_precision_at_r"))
        self.embedded = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, _):
        x, y = batch
        value = self.loss(self.network(x), y)
        self.log("loss", value)
        return value

    def validation_step(self, batch, _):
        x, y = batch
        self.embedded.append((torch.nn.functional.normalize(self.network(x)), y))

    def on_validation_epoch_end(self):
        x, y = (torch.cat(parts) for parts in zip(*self.embedded, strict=True))
        self.embedded.clear()
        self.log_dict(self.calculator.get_accuracy(x, y))


torch.manual_seed(0)
model = Model()
sampler = MPerClassSampler(labels[::2], m=8, length_before_new_iter=800)
loader = DataLoader(training, batch_sampler=DistributedBatchSampler(sampler, batch_size=80))
processes = int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=processes,
    strategy="ddp" if processes > 1 else "auto",
    use_distributed_sampler=False,  # the batches are divided already
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, DataLoader(tested, batch_size=256))
if trainer.is_global_zero:
    metrics = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
    print(metrics, "weights", float(model.network[0].weight.detach().abs().sum()))

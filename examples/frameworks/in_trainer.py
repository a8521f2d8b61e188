"""Loss, miner, memory and calculator in transformers' Trainer: ``python in_trainer.py``, or by ``torchrun``."""

import tempfile

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from pml_ext import CrossBatchMemory, DistributedBatchSampler, DistributedLoss, RetrievalAccuracyCalculator

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
rows = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]


class Model(torch.nn.Module):
    """A network that returns embeddings and, with labels, their loss."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
        memory = CrossBatchMemory(
            MultiSimilarityLoss(), embedding_size=32, memory_size=512, miner=MultiSimilarityMiner()
        )
        self.loss = DistributedLoss(memory)  # over the batches of all processes

    def forward(self, pixel_values, labels=None):
        embeddings = self.network(pixel_values)
        if not self.training:
            return {"embeddings": torch.nn.functional.normalize(embeddings)}
        return {"loss": self.loss(embeddings, labels), "embeddings": embeddings}


class MetricTrainer(Trainer):
    """A trainer with batches of several images of a class; Trainer's own loader is shuffled."""

    def get_train_dataloader(self):
        sampler = MPerClassSampler(labels[::2], m=8, length_before_new_iter=800)
        batches = DistributedBatchSampler(sampler, batch_size=80)
        return DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            inputs = self._prepare_inputs(inputs)
            return None, model(**inputs)["embeddings"], inputs["labels"]


def compute_metrics(predicted):
    calculator = RetrievalAccuracyCalculator(("recall_at_1", "mean_average_precision_at_r"))
    return calculator.get_accuracy(predicted.predictions, predicted.label_ids)


torch.manual_seed(0)
model = Model()
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=2,
    optim="sgd",
    learning_rate=0.1,
    lr_scheduler_type="constant",
    max_grad_norm=0,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = MetricTrainer(
    model=model, args=arguments, train_dataset=rows[::2], eval_dataset=rows[1::2], compute_metrics=compute_metrics
)
trainer.train()
found = trainer.evaluate()
if trainer.is_world_process_zero():
    metrics = {name.removeprefix("eval_"): round(value, 4) for name, value in found.items() if "_at_" in name}
    print(metrics, "weights", float(model.network[0].weight.detach().abs().sum()))

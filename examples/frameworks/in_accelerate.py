"""Loss, miner, memory and calculator with Accelerate: ``python in_accelerate.py``, or by ``accelerate launch``."""

import torch
from accelerate import Accelerator
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
sampler = MPerClassSampler(labels[::2], m=8, length_before_new_iter=800)
loader = DataLoader(training, batch_sampler=DistributedBatchSampler(sampler, batch_size=80))

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
memory = CrossBatchMemory(MultiSimilarityLoss(), embedding_size=32, memory_size=512, miner=MultiSimilarityMiner())
loss = DistributedLoss(memory).to(accelerator.device)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
network, optimizer = accelerator.prepare(network, optimizer)  # not the loader: its batches are divided already

for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        value = loss(network(x.to(accelerator.device)), y.to(accelerator.device))
        accelerator.backward(value)
        optimizer.step()

if accelerator.is_main_process:
    network = accelerator.unwrap_model(network)
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(network(images[1::2].to(accelerator.device)))
    calculator = RetrievalAccuracyCalculator(("recall_at_1", "mean_average_precision_at_r"))
    metrics = {name: round(float(v), 4) for name, v in calculator.get_accuracy(embeddings, labels[1::2]).items()}
    metrics["loss"] = round(float(value), 4)
    print(metrics, "weights", float(network[0].weight.detach().abs().sum()))
accelerator.end_training()

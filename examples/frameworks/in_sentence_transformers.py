"""Loss, miner, memory and calculator in sentence-transformers' trainer: texts with classes."""

import random
import tempfile

import torch
from datasets import Dataset
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import DataLoader

from pml_ext import CrossBatchMemory, DistributedBatchSampler, DistributedLoss, RetrievalAccuracyCalculator

generator = random.Random(0)
subjects = {"birds": "owl robin wing nest", "fish": "cod fin reef net", "trees": "oak leaf bark root"}
texts = []
labels = []
for _ in range(40):
    for label, words in enumerate(subjects.values()):
        others = generator.choices(["the", "a", "red", "old", "small", "new", "big", "far"], k=4)
        texts.append(" ".join([generator.choice(words.split()), *others]))
        labels.append(label)
vocabulary = {word: number for number, word in enumerate(sorted({word for text in texts for word in text.split()}))}
tokenizer = Tokenizer(WordLevel(vocabulary | {"[UNK]": len(vocabulary)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()


class PmlLoss(torch.nn.Module):
    """A loss of PML or of pml_ext, as the trainer calls its losses: with the features of a text, and labels."""

    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, sentence_features, labels):
        (features,) = sentence_features
        return self.loss(self.model(features)["sentence_embedding"], labels)


class MetricTrainer(SentenceTransformerTrainer):
    """A trainer with batches of several texts of a class, divided among the processes."""

    def get_train_dataloader(self):
        sampler = MPerClassSampler(self.train_dataset["label"], m=8, length_before_new_iter=240)
        batches = DistributedBatchSampler(sampler, batch_size=24)
        return DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)


torch.manual_seed(0)
model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
memory = CrossBatchMemory(MultiSimilarityLoss(), embedding_size=16, memory_size=96, miner=MultiSimilarityMiner())
arguments = SentenceTransformerTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=2,
    optim="sgd",
    learning_rate=0.5,
    lr_scheduler_type="constant",
    max_grad_norm=0,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = MetricTrainer(
    model=model,
    args=arguments,
    train_dataset=Dataset.from_dict({"text": texts[:60], "label": labels[:60]}),
    loss=PmlLoss(model, DistributedLoss(memory)),
)
trainer.train()
if trainer.is_world_process_zero():
    embeddings = model.encode(texts[60:], normalize_embeddings=True)
    calculator = RetrievalAccuracyCalculator(("recall_at_1", "mean_average_precision_at_r"))
    found = calculator.get_accuracy(embeddings, torch.tensor(labels[60:]))
    metrics = {name: round(float(value), 4) for name, value in found.items()}
    print(metrics, "weights", float(model[0].embedding.weight.detach().abs().sum()))

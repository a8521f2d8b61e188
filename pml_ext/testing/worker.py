"""One of the two processes of :mod:`pml_ext.testing.processes`: answers questions until its standard input ends."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch
import torch.distributed as dist

from ..distributed import DistributedLoss
from .processes import receive, send


def answer(question: bytes) -> dict[str, Any]:
    """The value and the gradients of a loss on this process's half of a batch.

    Args:
        question: a pickled loss, embeddings and labels.
    """
    try:
        loss, embeddings, labels = pickle.loads(question)
        half = slice(len(labels) * dist.get_rank() // 2, len(labels) * (dist.get_rank() + 1) // 2)
        x = embeddings[half].clone().requires_grad_()
        torch.manual_seed(0)
        value = DistributedLoss(loss)(x, labels[half])
        value.backward()
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value.detach(), "embeddings": x.grad, "parameters": [p.grad for p in loss.parameters()]}


def main() -> None:
    """The process's life."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what components print must not mix with the answers
    dist.init_process_group("gloo")
    while True:
        try:
            question = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(answers, pickle.dumps(answer(question)))


if __name__ == "__main__":
    main()

"""Two processes that the checks share, each with one half of a batch.

There is no limit of time: an answer is waited for as long as both processes are alive. They meet in a file rather than
at a port, which another process could take first.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_pair: _Pair | None = None


def in_two_processes(loss: Any, embeddings: torch.Tensor, labels: torch.Tensor) -> list[dict[str, Any]]:
    """Return the value and the gradients of a loss in two processes, each with one half of the batch.

    Args:
        loss: can be pickled, and imported by another process.
        embeddings: ``[B, D]``.
        labels: ``[B]``.

    Returns:
        Of each process: ``value``, ``embeddings`` (the gradient of its half) and ``parameters`` (theirs), or ``error``.
    """
    global _pair
    question = pickle.dumps((loss, embeddings.detach(), labels))
    if _pair is None or not _pair.alive():
        _pair = _Pair()
    return _pair.ask(question)


class _Pair:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        group = {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PML_EXT_MEETING": str(Path(self._folder.name) / "group")}
        environment = os.environ | group | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment | {"RANK": str(rank)},
            )
            for rank in range(2)
        ]
        atexit.register(self.stop)

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def ask(self, question: bytes) -> list[dict[str, Any]]:
        for process in self._processes:
            assert process.stdin is not None
            pickle.dump(question, process.stdin)
            process.stdin.flush()
        try:
            return [pickle.load(process.stdout) for process in self._processes if process.stdout is not None]
        except EOFError:
            self.stop()
            raise AssertionError("one of the two processes ended before it answered") from None

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()


def main() -> None:
    """Answer questions from the standard input until it ends; one of the two processes."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what components print must not mix with the answers
    meeting = Path(os.environ["PML_EXT_MEETING"]).as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=2)
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_answer(question), answers)
        answers.flush()


def _answer(question: bytes) -> dict[str, Any]:
    from ..distributed import DistributedLoss

    try:
        loss, embeddings, labels = pickle.loads(question)
        half = slice(len(labels) * dist.get_rank() // 2, len(labels) * (dist.get_rank() + 1) // 2)
        x = embeddings[half].clone().requires_grad_()
        torch.manual_seed(0)
        value = DistributedLoss(loss)(x, labels[half])
        value.backward()  # type: ignore[no-untyped-call]
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value.detach(), "embeddings": x.grad, "parameters": [p.grad for p in loss.parameters()]}

"""One pair of processes for all checks that need two."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import struct
import subprocess
import sys
from typing import IO, Any

import torch

_pair: _Pair | None = None


def in_two_processes(loss: Any, embeddings: torch.Tensor, labels: torch.Tensor) -> list[dict[str, Any]]:
    """The value of a loss and its gradients, each process having one half of the batch.

    Args:
        loss: can be pickled, and imported by another process.
        embeddings: ``[B, D]``.
        labels: ``[B]``.

    Returns:
        Of each process: ``value``, ``embeddings`` (the gradient of its half) and ``parameters`` (theirs), or ``error``.
    """
    global _pair
    if _pair is None or not _pair.alive():
        _pair = _Pair()
        atexit.register(_pair.stop)
    return _pair.ask((loss, embeddings.detach(), labels))


class _Pair:
    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        environment = os.environ | group | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "pml_ext.testing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment | {"RANK": str(rank)},
            )
            for rank in range(2)
        ]

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def ask(self, question: Any) -> list[dict[str, Any]]:
        data = pickle.dumps(question)
        for process in self._processes:
            assert process.stdin is not None
            send(process.stdin, data)
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(pickle.loads(receive(process.stdout)))
        return answers

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def send(stream: IO[bytes], data: bytes) -> None:
    """Writes bytes with their length before them."""
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Reads what :func:`send` wrote.

    Raises:
        EOFError: the other process has ended.
    """
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError("the other process has ended")
    return stream.read(struct.unpack("<q", header)[0])

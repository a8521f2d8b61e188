"""Processes that read images: where they come from, and when they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from pml_ext_train.training.batches import BatchReader, epoch_batches
from pml_ext_train.training.workers import worker_context

from .worker_images import Noisy

CPU = torch.device("cpu")


def test_a_worker_outlives_signals_to_every_process():
    reader = BatchReader(Noisy(), 1, CPU)
    batches = reader.read(epoch_batches([[number] for number in range(12)], 0, 1))
    next(batches)
    worker = int(reader.images.reading[0, 0])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(worker, number)
    assert len(list(batches)) == 11
    reader.close()


def test_workers_come_from_the_fork_server():
    """Or by spawn where there is none; a fork of this process would copy the locks of its threads."""
    reader = BatchReader(Noisy(), 2, CPU)
    assert len(list(reader.read(epoch_batches([[0], [1], [2]], 0, 1)))) == 3  # both workers have started
    assert worker_context().get_start_method() == ("forkserver" if sys.platform == "linux" else "spawn")
    workers = reader.images.reading[:, 0].tolist()
    if sys.platform == "linux":
        (server,) = {Path(f"/proc/{worker}/stat").read_text().split()[3] for worker in workers}
        assert int(server) != os.getpid()
        assert "Threads:\t1\n" in Path(f"/proc/{server}/status").read_text()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a scheduler sends them to every process
            os.kill(int(server), number)
    assert len(list(reader.read(epoch_batches([[0], [1], [2]], 0, 2)))) == 3
    reader.close()


FORKED = """
import os
from pml_ext_train.training.workers import worker_context

worker_context()
child = os.fork()
if child == 0:
    os._exit(0 if worker_context().get_start_method() == "spawn" else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_a_fork_of_the_process_spawns_its_workers():
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=100).returncode == 0


SCRIPT = """
import gc, os, signal, sys
from torch import device, zeros
from torch.utils.data import Dataset
from pml_ext_train.training.batches import BatchReader, epoch_batches

class Images(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return zeros(1), index

def work():
    reader = BatchReader(Images(), 2, device("cpu"))
    batches = reader.read(epoch_batches([[0], [1], [2], [3]], 0, 1))
    with reader.naming_images():
        left = [batches, next(batches)]
    left.append(left)
    return reader
"""
LEFT = """
if __name__ == "__main__":
    gc.disable()
    work()
    print("read")
"""
KILLED = """
if __name__ == "__main__":
    reader = work()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_script(path, text):
    path.write_text(SCRIPT + text)
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=250)


def test_a_process_ends_though_nobody_ended_its_workers(tmp_path):
    done = run_script(tmp_path / "left.py", LEFT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def test_workers_end_when_their_run_is_killed(tmp_path):
    done = run_script(tmp_path / "killed.py", KILLED)  # returns when workers and server have closed its pipes, too
    assert done.returncode == -signal.SIGKILL


def test_scripts_without_main_blocks_get_advice(tmp_path):
    done = run_script(tmp_path / "unguarded.py", "work()\n")
    assert done.returncode == 1
    assert "a data-loader worker died before it read an image" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr.splitlines()[-1]

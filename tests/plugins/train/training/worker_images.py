"""Data sets that workers read: in a module of their own, which each worker imports."""

import os
import signal

import torch


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index + torch.rand(3), index


class Deadly(Noisy):
    """Ends the worker that reads image 13."""

    paths = tuple(f"photographs/{number}.jpg" for number in range(20))

    def __getitem__(self, index):
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Open(Noisy):
    """Holds an open file, which cannot be pickled."""

    def __init__(self):
        self.file = open(os.devnull)  # noqa: SIM115

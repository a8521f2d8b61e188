"""Workers that die, images that cannot be read or passed to workers: each is named."""

import os
import signal
import sys
import threading
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from pml_ext.errors import DataError
from pml_ext_train.training.batches import BatchReader, embed_batches, epoch_batches

from .worker_images import Deadly, Noisy, Open

CPU = torch.device("cpu")


def test_a_dead_worker_names_its_image():
    wanted = r"worker died while it read photographs/13.jpg \((DataLoader worker .*|EOFError|.*[Cc]onnection.*)\)\. If"
    reader = BatchReader(Deadly(), 2, CPU)
    with pytest.raises(DataError, match=wanted), reader.naming_images():
        list(reader.read(epoch_batches([[1, 2], [3, 4], [5, 13], [6, 7]], 0, 1)))
    reader.close()
    with pytest.raises(DataError, match=wanted):
        list(embed_batches(nn.Flatten(), nn.Identity(), Deadly(), CPU, batch_size=4, workers=2))


class Failing(Noisy):
    """Images, one of which cannot be computed."""

    def __getitem__(self, index):
        if index == 5:
            sys.exit("no such file")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_whose_code_fails_is_named(workers):
    with pytest.raises(DataError, match="image 5 cannot be read: SystemExit: no such file"):
        list(embed_batches(nn.Flatten(), nn.Identity(), Failing(), CPU, batch_size=4, workers=workers))


def test_a_broken_batch_names_its_image():
    reader = BatchReader(Noisy(), 1, CPU)
    next(reader.read(epoch_batches([[0], [1]], 0, 1)))
    killed = threading.Timer(0.2, os.kill, (int(reader.images.reading[0, 0]), signal.SIGKILL))
    killed.start()
    with pytest.raises(DataError, match="a data-loader worker died while it read image"), reader.naming_images():
        raise EOFError
    reader.close()


def test_images_that_cannot_be_pickled_are_refused():
    wanted = r"Open or their transform cannot be pickled .* \(TypeError: cannot pickle .*\)\. .* data.workers = 0"
    reader = BatchReader(Open(), 1, CPU)
    with pytest.raises(DataError, match=wanted):
        next(reader.read(epoch_batches([[1, 2]], 0, 1)))
    with pytest.raises(DataError, match=wanted):
        next(embed_batches(nn.Flatten(), nn.Identity(), Open(), CPU, workers=1))


def test_images_beyond_shared_memory_are_refused(monkeypatch):
    error = RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")
    reader = BatchReader(Noisy(), 1, CPU)
    monkeypatch.setattr(DataLoader, "__iter__", Mock(side_effect=error))
    with pytest.raises(DataError, match="images in memory do not fit into /dev/shm .*docker run --shm-size"):
        next(reader.read(epoch_batches([[1, 2]], 0, 1)))

"""The batches of an epoch: over processes, by workers, and errors that name an image."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from pml_ext.errors import DataError, TrainingError
from pml_ext.pairwise import ListedTuples
from pml_ext.samplers import TupleSampler
from pml_ext_train.data import LabeledImages, Pipeline, build_transforms
from pml_ext_train.training.batches import (
    Batch,
    BatchReader,
    draw,
    draw_for_all,
    embed_batches,
    epoch_batches,
    with_indices,
)
from pml_ext_train.training.loader import WorkerDataset
from pml_ext_train.training.workers import worker_context

from .worker_images import Deadly, Noisy, Open

CPU = torch.device("cpu")


def test_batches_of_listed_pairs_have_their_indices():
    pairs = ListedTuples([[0, 1], [2, 3], [1, 2], [4, 0]], [True, False, False, True])
    drawn = [batch.tuples for batch in TupleSampler(pairs, 2, seed=5)]
    assert draw(TupleSampler(pairs, 2, seed=5), 2, 1) == drawn[:1]
    batches, indices = draw_for_all(TupleSampler(pairs, 2, seed=5), 2, 2, seed=0, epoch=1)
    assert [[index for index, _ in batch] for batch in batches] == [pairs.batch(numbers).items for numbers in drawn]
    reading = [
        Batch(torch.full((len(batch), 1), number), torch.zeros(len(batch))) for number, batch in enumerate(batches)
    ]
    for number, (images, labels, listed) in enumerate(with_indices(reading, indices, CPU)):
        assert labels is None
        assert torch.equal(images, reading[number].images)
        assert all(map(torch.equal, listed, pairs.batch(drawn[number]).indices_tuple))
    assert list(with_indices(reading, None, CPU)) == reading
    assert draw_for_all(SequentialSampler(range(4)), 2, 2, seed=0, epoch=1)[1] is None


def test_a_batch_has_an_image_for_each_process(monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.batches.num_processes", lambda: 3)
    with pytest.raises(
        TrainingError, match=r"a batch of 2 images is too small for 3 processes; set sampler.batch_size to 3 or more"
    ):
        draw_for_all(SequentialSampler(range(4)), 2, 2, seed=0, epoch=1)
    batches, _ = draw_for_all(SequentialSampler(range(4)), 2, 2, seed=0, epoch=1, views=2)
    assert [len(batch) for batch in batches] == [1, 1]


def test_seeds_differ_between_images_epochs_and_runs():
    joined = [[0] * 50, [0] * 50]
    batches = [batch for run in (0, 1) for epoch in (1, 2) for batch in epoch_batches(joined, run, epoch)]
    assert len({seed for batch in batches for _, seed in batch}) == 400


def test_draws_from_samplers_of_indices_and_of_batches():
    assert draw(SequentialSampler(range(10)), 3, 3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert draw(BatchSampler(SequentialSampler(range(10)), 4, drop_last=False), 99, 3) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


@pytest.mark.parametrize("settings", [{}, {"bgr": True, "value_range": 255, "random_crop_scale": (0.5, 1.0)}])
def test_batches_do_not_depend_on_workers(settings):
    """A quarter of what the network gets; what is left is done to whole batches."""
    pixels = torch.randint(256, (6, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    augmented, plain = build_transforms(
        16, 3, True, ((0.5, 0.4, 0.3), (0.2, 0.3, 0.1)), shift=2, pipeline=Pipeline(flip=True, **settings)
    )
    images = LabeledImages(pixels, [0, 1] * 3, ["a", "b"])
    epoch = epoch_batches([[5, 5, 0], [1, 2, 3]], 3, 1)
    drawn = []
    for workers in (0, 1):
        reader = BatchReader(images.with_transform(augmented), workers, CPU)
        drawn.append(list(reader.read(epoch)))
        assert reader._loader.dataset[0, 1][0].dtype == torch.uint8
        for batch, items in zip(drawn[-1], epoch, strict=True):
            for image, (index, seed) in zip(batch.images, items, strict=True):
                torch.manual_seed(seed)
                assert torch.equal(image, augmented(pixels[index]))  # as of one image alone, to the last bit
        reader.close()
    without_workers, with_workers = ([batch.images for batch in batches] for batches in drawn)
    assert with_workers[0].dtype == torch.float32
    torch.testing.assert_close(with_workers, without_workers, rtol=0, atol=0)
    flat = nn.Flatten(), nn.Identity(), images.with_transform(plain), CPU, 4
    passes = [[each.features for each in embed_batches(*flat, workers)] for workers in (0, 1)]
    torch.testing.assert_close(*passes, rtol=0, atol=0)


def test_embedding_keeps_order_and_has_no_effects():
    pixels = torch.randint(256, (23, 1, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = LabeledImages(pixels, torch.arange(23) % 5, list("abcde"), lambda image: image.float() / 255, channels=1)
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    trunk[1].running_mean.uniform_()
    trunk[1].eval()  # frozen within a network that trains
    embedder = nn.Linear(64, 3)
    before = torch.get_rng_state()
    batches = list(embed_batches(trunk, embedder, images, CPU, batch_size=8))
    assert [len(batch.images) for batch in batches] == [8, 8, 7]
    embeddings = torch.cat([batch.embeddings for batch in batches])
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in (trunk, *trunk)] == [True, True, False, True, True, True]
    assert torch.allclose(
        embeddings, embedder(trunk.eval()(torch.stack([images[index][0] for index in range(23)]))), atol=1e-6
    )
    assert torch.cat([batch.labels for batch in batches]).tolist() == images.labels.tolist()
    assert not embeddings.requires_grad


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_epoch_leaves_nothing_behind(workers):
    reader = BatchReader(Noisy(), workers, CPU)
    broken = reader.read(epoch_batches([[1, 2], [3, 4], [5, 6]], 0, 1))
    next(broken)
    broken.close()
    second = epoch_batches([[7, 8], [9, 7]], 0, 2)
    alone = WorkerDataset(Noisy(), 0)
    for batch, (values, indices, _) in zip(second, reader.read(second), strict=True):
        assert indices.tolist() == [index for index, _ in batch]
        assert torch.equal(values, torch.stack([alone[item][0] for item in batch]))


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        (range(9), r"one pass of list gave 2 batches of 4 images instead of 3"),
        ([0.5] * 12, "list must give indices of images; 'float' object"),
        ([3, -1] * 6, "list must give indices of images, from 0; it gave -1"),
    ],
)
def test_unexpected_batches_of_samplers_are_refused(indices, text):
    with pytest.raises(TrainingError, match=text):
        draw([*indices], 4, 3)


# Errors that name an image


def test_a_dead_worker_names_its_image():
    wanted = r"worker died while it read photographs/13.jpg \((DataLoader worker .*|EOFError|.*[Cc]onnection.*)\)\. If"
    reader = BatchReader(Deadly(), 2, CPU)
    with pytest.raises(DataError, match=wanted), reader.naming_images():
        list(reader.read(epoch_batches([[1, 2], [3, 4], [5, 13], [6, 7]], 0, 1)))
    reader.close()
    with pytest.raises(DataError, match=wanted):
        list(embed_batches(nn.Flatten(), nn.Identity(), Deadly(), CPU, batch_size=4, workers=2))


class Failing(Noisy):
    """Images; one cannot be computed."""

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
    threading.Timer(0.2, os.kill, (int(reader.images.reading[0, 0]), signal.SIGKILL)).start()
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


# Workers


@pytest.mark.slow
def test_a_worker_outlives_signals_to_every_process():
    reader = BatchReader(Noisy(), 1, CPU)
    batches = reader.read(epoch_batches([[number] for number in range(12)], 0, 1))
    next(batches)
    worker = int(reader.images.reading[0, 0])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(worker, number)
    assert len(list(batches)) == 11
    reader.close()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.nightly
def test_a_process_ends_though_nobody_ended_its_workers(tmp_path):
    done = run_script(tmp_path / "left.py", LEFT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


@pytest.mark.nightly
def test_workers_end_when_their_run_is_killed(tmp_path):
    done = run_script(tmp_path / "killed.py", KILLED)  # returns when workers and server have closed its pipes, too
    assert done.returncode == -signal.SIGKILL


@pytest.mark.nightly
def test_scripts_without_main_blocks_get_advice(tmp_path):
    done = run_script(tmp_path / "unguarded.py", "work()\n")
    assert done.returncode == 1
    assert "a data-loader worker died before it read an image" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr.splitlines()[-1]

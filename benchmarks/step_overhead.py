"""Operators, Python calls and values read in a training step of a run, beside a bare loop.

``python -m benchmarks.step_overhead [RECIPE]``: on a CPU, by default ``cbml/digits``. A step of a run reads a batch,
trains, checks for NaN, records values and looks for signals. Counts are differences between epochs of 14 and 4
iterations, without operators that only view or allocate tensors. Values read are those moved to the host, which a GPU
has to wait for. The counts depend only on the version of torch.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import pml_ext
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training.batches import draw
from pml_ext_train.training.checkpointing import Checkpointer
from pml_ext_train.training.devices import read_numbers
from pml_ext_train.training.loop import open_records, train_epoch
from pml_ext_train.training.run import Run

FEW = 4
MANY = 14
OURS = Path(pml_ext.__file__).parent
LOOKS = {
    "detach",
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "alias",
}
LOOKS |= {
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "as_strided",
    "split",
    "permute",
    "reshape",
    "_local_scalar_dense",
}


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in LOOKS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


READS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__", "nonzero"}


TOGETHER = "in one transfer"  # with the other numbers of the step, if they are on an accelerator


class Reads(TorchFunctionMode):
    """Counts functions that read values of tensors, or whose shapes depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS:
            if sys._getframe(1).f_code is read_numbers.__code__:
                name = TOGETHER
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def reads_of(work: Callable[[], object]) -> Counter[str]:
    """Counts of functions that read values of tensors, by name."""
    with Reads() as reads:
        work()
    return reads.counts


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Counts of Python functions that a call runs, by file."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def operators_of(work: Callable[[], object]) -> Counter[str]:
    with Operators() as operators:
        work()
    return operators.counts


def epoch_of_a_run(recipe: str, iterations: int, folder: Path) -> Callable[[], object]:
    run = _run(recipe, iterations, folder)
    records = open_records(run)
    run.epoch = 1
    return lambda: train_epoch(run, records, Checkpointer(run))


def bare_epoch(recipe: str, iterations: int, folder: Path) -> Callable[[], object]:
    """A loop over the run's batches that trains as PyTorch's tutorials do."""
    run = _run(recipe, iterations, folder)
    stage = run.stages[0]
    network = nn.Sequential(run.trunk, run.embedder)
    batches = draw(stage.sampler, stage.batch_size, iterations)
    optimizers = [*run.optimizers.values()]
    if stage.optimizer is not None:
        optimizers.append(stage.optimizer)
    loader = DataLoader(run.data.training_images, batch_sampler=batches)

    def train() -> None:
        network.train()
        for images, labels in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            embeddings = network(images)
            indices_tuple = None if stage.miner is None else stage.miner(embeddings, labels)
            loss = stage.loss(embeddings, labels, indices_tuple)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            loss.item()

    return train


def _run(recipe: str, iterations: int, folder: Path) -> Run:
    loaded = load_recipe(recipe, {"sampler.iterations": iterations})
    run = Run(loaded, recipe, folder, device="cpu")
    run.call_parts("prepare")
    return run


def of_a_step(recipe: str, make: Callable[..., Any], measure: Callable[..., Counter[str]]) -> dict[str, float]:
    counts = []
    for iterations in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder:
            measure(make(recipe, FEW, Path(folder)))  # the first calls make what later ones keep
            counts.append(measure(make(recipe, iterations, Path(folder))))
    few, many = counts
    return {name: (many[name] - few[name]) / (MANY - FEW) for name in many if many[name] != few[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cbml/digits")
    recipe = parser.parse_args().recipe
    torch.set_num_threads(1)
    print(f"{recipe}, a step{'':24} run   bare loop   more")
    for title, measure in (("operators", operators_of), ("values read", reads_of), ("Python calls", calls_of)):
        ours = of_a_step(recipe, epoch_of_a_run, measure)
        bare = of_a_step(recipe, bare_epoch, measure)
        one, other = sum(ours.values()), sum(bare.values())
        print(f"{title:30} {one:10.1f} {other:10.1f} {one - other:8.1f}")
        more = {name: count - bare.get(name, 0) for name, count in ours.items()}
        for name, count in sorted(more.items(), key=lambda item: -item[1])[:12]:
            if count >= 1:
                place = Path(name)
                shown = place.relative_to(OURS) if place.is_relative_to(OURS) else Path(*place.parts[-2:])
                print(f"    {shown!s:46} {count:8.1f}")


if __name__ == "__main__":
    main()

"""Short whole runs on digits, and a listener that keeps what it hears."""

import re
from pathlib import Path

from pml_ext_train.launch.launch import train

from ....overrides import typed

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")


def quick(out: Path, *overrides: str, recipe: str = "cbml/digits", **settings):
    return train(recipe, out=out, overrides=typed((*QUICK, *overrides)), device="cpu", **settings)[0]


def same(one: dict, other: dict) -> bool:
    return all(one[phase] == other[phase] for phase in ("raw", "before", "after"))


class Ear:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.warnings = []
        self.epochs = []

    def iteration(self, *_): ...
    def step(self, text):
        if found := re.fullmatch(r"epoch (\d+) of (\d+): loss ([\d.]+), (\d+) images/s, (\d:\d\d:\d\d) left.*", text):
            self.epochs.append(found.groups())

    def warn(self, text):
        self.warnings.append(text)

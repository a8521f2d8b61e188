"""The last blocks of a trunk of any architecture: what to train where the whole network would take too long."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pml_ext.errors import ConfigError

from .cut import cut_before
from .modes import preserved_modes
from .trunks import unwrapped_trunk

SHARE = 0.4  # of the trunk's operations, at most: EfficientNet-Lite0's from blocks.5 on are 0.37
FEWEST_BLOCKS = 3  # of a sequence
_NUMBERED = re.compile(r"(.*?)(\d+)")


class LastBlocks(NamedTuple):
    """Where a trunk is cut: the name of the first block that trains, and the share of the operations from there on."""

    first: str
    share: float


def last_blocks(trunk: nn.Module, channels: int, image_size: int) -> LastBlocks | None:
    """Return the most last blocks that take at most 40 % of the operations of a pass; the last one, if it takes more.

    Blocks are modules in a row whose names differ by their number, such as ``blocks.5``, ``layer4`` or ``features.6``;
    of several rows, that with the most parameters counts. Return None for a trunk without such a row, and for one that
    :func:`.cut.cut_before` refuses at every block.
    """
    images = torch.zeros(1, channels, image_size, image_size)
    found: LastBlocks | None = None
    with preserved_modes(trunk), torch.no_grad():
        trunk.eval()
        whole = operations_of(trunk, images)
        for name in reversed(blocks_in_a_row(unwrapped_trunk(trunk))):
            try:
                parts = cut_before(trunk, name)
                share = operations_of(parts.rest, parts.stem(images)) / whole
            except (ConfigError, ZeroDivisionError):
                continue
            if found is not None and share > SHARE:
                break
            found = LastBlocks(name, share)
    return found


def operations_of(network: nn.Module, inputs: torch.Tensor) -> int:
    """Return the floating-point operations of a forward pass: of its convolutions, matrix products and attention."""
    with FlopCounterMode(display=False) as counter:
        network(inputs)
    return int(counter.get_total_flops())


def blocks_in_a_row(model: nn.Module) -> list[str]:
    """Return the names of the row of numbered modules with the most parameters, in order; [] without three of them."""
    rows: dict[str, dict[int, str]] = {}
    sizes: dict[str, int] = {}
    for name, module in model.named_modules():
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            continue
        row, number = numbered.groups()
        rows.setdefault(row, {})[int(number)] = name
        sizes[row] = sizes.get(row, 0) + sum(parameter.numel() for parameter in module.parameters())
    known = [row for row, members in rows.items() if len(members) >= FEWEST_BLOCKS]
    if not known:
        return []
    largest = max(known, key=sizes.__getitem__)
    return [rows[largest][number] for number in sorted(rows[largest])]

"""The last blocks of a trunk, to train where the whole network would take too long."""

import re
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pml_ext.errors import ConfigError

from .cut import cut_before
from .modes import evaluation_mode
from .trunks import unwrapped_trunk

SHARE = 0.4  # of the trunk's operations, at most: EfficientNet-Lite0's from blocks.5 on are 0.37
FEWEST_BLOCKS = 3  # of a sequence
_NUMBERED = re.compile(r"(.*?)(\d+)")


class LastBlocks(NamedTuple):
    """The first block that trains, and its share of the operations with all that follow."""

    first: str
    share: float


def last_blocks(trunk: nn.Module, channels: int, image_size: int) -> LastBlocks | None:
    """The most last blocks with at most 40 % of the operations, or the very last block.

    Blocks are modules whose names differ by a number, such as ``blocks.5`` or ``layer4``; of several rows, the one with
    the most parameters counts. None without such a row, or if :func:`.cut.cut_before` fails at every block.
    """
    images = torch.zeros(1, channels, image_size, image_size)
    found: LastBlocks | None = None
    with evaluation_mode(trunk), torch.no_grad():
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
    """Floating-point operations of a forward pass: convolutions, matrix products and attention."""
    with FlopCounterMode(display=False) as counter:
        network(inputs)
    return int(counter.get_total_flops())


def blocks_in_a_row(model: nn.Module) -> list[str]:
    """Names in the row of numbered modules with the most parameters; [] if no row has three."""
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

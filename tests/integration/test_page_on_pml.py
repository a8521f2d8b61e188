"""The lines of the page on PML's losses show what they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "block", re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pml-losses.md").read_text(), re.S)
)
def test_the_lines_on_pmls_losses_show_what_they_say(block):
    import torch

    torch.manual_seed(0)
    exec(compile(block, "pml-losses.md", "exec"), {})

"""Font files for the captions of contact sheets, in any script."""

from __future__ import annotations

import functools

from pml_ext_train.report import font_families


def font_file(text: str) -> str:
    """Return the font file of the first family that has every letter of a text, else that of DejaVu Sans."""
    from matplotlib.font_manager import findfont

    if text.isascii():
        return findfont("DejaVu Sans")
    files = [findfont(family) for family in font_families()]
    codes = set(map(ord, text))
    for file in files:
        if codes <= _letters(file):
            return file
    return files[0]


@functools.cache
def _letters(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(file).get_charmap())

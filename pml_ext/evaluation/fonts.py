"""Fonts for names in any script: DejaVu Sans, which matplotlib brings, or else an installed font."""

from __future__ import annotations

import functools
import unicodedata

from ..errors import needs_extra

with needs_extra("train", "a picture"):
    from matplotlib.font_manager import FontEntry, fontManager
    from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"
_REVERSING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # a name could show as another one


def drawable(text: str) -> str:
    """Return a text with marks for control characters, which no font has, and for bytes that are no UTF-8."""
    return "".join(
        "�" if letter in _REVERSING or (letter != "\n" and unicodedata.category(letter) in ("Cc", "Cs")) else letter
        for letter in text
    )


def short_name(name: str, columns: int = 18) -> str:
    """Return the end of a name, on one line, where it is longer than fits; Chinese and the like take two columns."""
    name = drawable(name.replace("\n", "�"))
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in name]
    if sum(widths) <= columns:
        return name
    kept, room = 0, columns - 1
    while kept < len(name) and (room := room - widths[-1 - kept]) >= 0:
        kept += 1
    return f"…{name[len(name) - kept :]}"


def font_of(text: str) -> FontEntry:
    """Return the first installed font that has all of a text's letters; DejaVu Sans if none has."""
    letters = {ord(letter) for letter in text if not letter.isspace()}
    return next((font for font in _fonts() if letters <= _characters(font.fname)), _fonts()[0])


@functools.cache
def _fonts() -> list[FontEntry]:
    """Return a regular font of each family: DejaVu Sans, then Chinese ones and the like, then other sans serif ones."""
    regular: dict[str, FontEntry] = {}
    for entry in fontManager.ttflist:
        upright = entry.style == "normal" and entry.stretch in ("normal", 400)
        fit = not any(word in entry.name for word in ("Mono", "Emoji", "Last Resort"))
        if upright and fit and entry.weight in (400, "normal", "regular", "book"):
            regular.setdefault(entry.name, entry)
    order = sorted(regular, key=lambda name: (name != DEFAULT, "CJK" not in name, "Sans" not in name, name))
    return [regular[name] for name in order]


@functools.cache
def _characters(file: str) -> frozenset[int]:
    return frozenset(FT2Font(file).get_charmap())

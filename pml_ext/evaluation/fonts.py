"""Names from data as texts that can be drawn."""

from __future__ import annotations

import unicodedata

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

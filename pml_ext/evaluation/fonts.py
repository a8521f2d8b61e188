"""Fonts for names in any script: DejaVu Sans, which matplotlib brings, then installed fonts for what it lacks."""

from __future__ import annotations

import contextlib
import functools
import unicodedata
from collections.abc import Iterator
from itertools import groupby

from ..errors import needs_extra

with needs_extra("train", "a picture"):
    from matplotlib.font_manager import FontEntry, findSystemFonts, fontManager
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


def families_of(text: str) -> list[str]:
    """Return the font families that together have a text's characters, as matplotlib takes them."""
    return list(dict.fromkeys([DEFAULT, *(_entry_of(letter).name for letter in dict.fromkeys(text))]))


def runs_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield a line's parts, each after the file of a font that has its characters."""
    for file, letters in groupby(text, lambda letter: str(_entry_of(letter).fname)):
        yield file, "".join(letters)


@functools.cache
def _entry_of(letter: str) -> FontEntry:
    default = _default()
    if letter.isspace() or ord(letter) in _characters(default.fname):
        return default
    return next((entry for entry in _others() if ord(letter) in _characters(entry.fname)), default)


@functools.cache
def _default() -> FontEntry:
    return _regular()[DEFAULT]


@functools.cache
def _others() -> list[FontEntry]:
    """Return the other families' regular fonts, sans serif ones first; monospaced and color fonts are left out."""
    for file in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
        with contextlib.suppress(OSError, RuntimeError):  # no font for matplotlib, whose list may be old
            fontManager.addfont(file)
    regular = _regular()
    unfit = ("Mono", "Emoji", "Last Resort")
    names = [name for name in regular if not any(word in name for word in unfit)]
    return [regular[name] for name in sorted(names, key=lambda name: ("CJK" not in name, "Sans" not in name, name))]


def _regular() -> dict[str, FontEntry]:
    regular: dict[str, FontEntry] = {}
    for entry in fontManager.ttflist:
        upright = entry.style == "normal" and entry.stretch in ("normal", 400)
        if upright and entry.weight in (400, "normal", "regular", "book"):
            regular.setdefault(entry.name, entry)
    return regular


@functools.cache
def _characters(file: str) -> frozenset[int]:
    return frozenset(FT2Font(file).get_charmap())

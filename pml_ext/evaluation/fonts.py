"""Fonts for names in any script: DejaVu Sans, which matplotlib brings, then what is installed for what it lacks."""

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
# Beside the families of Noto Sans: what Linux, macOS and Windows have for scripts that DejaVu Sans lacks.
_WIDE = (
    "Noto Sans CJK",
    "Noto Sans",
    "Source Han Sans",
    "WenQuanYi",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "Droid Sans Fallback",
    "NanumGothic",
    "Hiragino Sans",
    "PingFang",
    "Apple SD Gothic Neo",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala",
    "Leelawadee",
    "Arial Unicode",
    "FreeSans",
    "Unifont",
)
_REVERSING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # a name could show as another one


def drawable(text: str) -> str:
    """A text without what a font cannot have: control characters and the halves of bytes that are no UTF-8.

    Args:
        text: of several lines, perhaps.
    """
    return "".join("�" if _cannot_be_drawn(letter) else letter for letter in text)


def _cannot_be_drawn(letter: str) -> bool:
    return letter in _REVERSING or (letter != "\n" and unicodedata.category(letter) in ("Cc", "Cs"))


def short_name(name: str, columns: int = 18) -> str:
    """The end of a name, on one line, where it is longer than fits; Chinese and the like take two columns a letter.

    Args:
        name: of a file or a class.
        columns: of letters that fit.
    """
    name = drawable(name.replace("\n", "�"))
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in name]
    if sum(widths) <= columns:
        return name
    kept, room = 0, columns - 1
    while kept < len(name) and (room := room - widths[-1 - kept]) >= 0:
        kept += 1
    return f"…{name[len(name) - kept :]}"


def families_of(text: str) -> list[str]:
    """The families that together have a text's characters, as matplotlib's lists of fonts are: the first that has it.

    Args:
        text: a character that no installed font has is drawn as a box.
    """
    return list(dict.fromkeys([DEFAULT, *(_entry_of(letter).name for letter in dict.fromkeys(text))]))


def runs_of(text: str) -> Iterator[tuple[str, str]]:
    """A text's parts, each with the file of a font that has its characters.

    Args:
        text: one line.
    """
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
    """The regular cut of each family beside DejaVu Sans, in the order in which they are asked."""
    for file in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
        with contextlib.suppress(OSError, RuntimeError):  # no font for matplotlib, which knows what was there once
            fontManager.addfont(file)
    regular = _regular()
    ranks = {
        name: rank
        for name in regular
        if "Mono" not in name and "Emoji" not in name  # letters of equal width, and pictures, which cannot be drawn
        for rank in [next((rank for rank, start in enumerate(_WIDE) if name.startswith(start)), None)]
        if rank is not None
    }
    return [regular[name] for name in sorted(ranks, key=lambda name: (ranks[name], name))]


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

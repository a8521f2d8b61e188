"""Names as drawable texts in any script."""

import functools
import itertools
import re
import unicodedata

# Families with Chinese, Japanese and Korean letters on Linux, macOS and Windows.
_WIDE = (
    *("Noto Sans CJK", "Source Han Sans", "WenQuanYi", "IPA", "TakaoGothic", "Droid Sans Fallback", "Nanum"),
    *("PingFang", "Hiragino Sans", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("Arial Unicode", "Unifont"),
)
# Controls but the line break, bidi controls, which disguise names, and surrogates
_NOT_DRAWABLE = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def drawable(text: str) -> str:
    """Replace control characters and invalid UTF-8 by placeholders."""
    return _NOT_DRAWABLE.sub("�", text)


def short_name(name: str, columns: int = 18) -> str:
    """Return a name cut at the front to ``columns``; wide letters take two."""
    name = drawable(name.replace("\n", "�"))
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in name]
    if sum(widths) <= columns:
        return name
    kept = sum(total < columns for total in itertools.accumulate(reversed(widths)))
    return f"…{name[len(name) - kept :]}"


@functools.cache
def font_families() -> list[str]:
    """Return DejaVu Sans and installed families with CJK letters."""
    from matplotlib.font_manager import fontManager

    names = sorted({entry.name for entry in fontManager.ttflist if entry.style == "normal"})
    found = ["DejaVu Sans"]
    for start in _WIDE:
        found += [name for name in names if name.startswith(start)]
    return found

"""What tests of pages share: their blocks, and whether a command prints what its page shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks_of(page: Path, languages: str) -> list[tuple[str, str]]:
    """Language and text of a page's blocks."""
    return re.findall(rf"^[ ]*```({languages})\n(.*?)```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def not_printed(shown: str, printed: str) -> list[str]:
    """The lines of a page's output that were not printed. Numbers may differ; ``...`` is any text."""
    lines = [line for line in shown.splitlines() if line.strip()]
    return [line for line in lines if not re.search(_pattern(line), printed, re.MULTILINE)]


def _pattern(line: str) -> str:
    parts = [re.sub(r"\d[\d.,]*", "0", part) for part in line.split("...")]
    words = [r"\s+".join(re.escape(word).replace("0", r"\d[\d.,]*") for word in part.split()) for part in parts]
    return r"^\s*" + r".*".join(rf"\s*{text}\s*" if text else "" for text in words)

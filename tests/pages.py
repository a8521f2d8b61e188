"""What tests of pages share: their blocks, and whether a command prints what its page shows."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks_of(page: Path, languages: str) -> list[tuple[str, str]]:
    """Language and text of a page's blocks."""
    return re.findall(rf"^[ ]*```({languages})\n(.*?)```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def run_page(
    name: str,
    command: Callable[..., CompletedProcess[str]],
    further: Callable[[str], Sequence[str] | None],
    languages: str = "python|bash|toml|text",
) -> tuple[list[str], dict[str, Any]]:
    """Run a page's blocks in the working folder, and compare what commands print with the blocks of text.

    ``further(line)`` gives more arguments of a command, or None to leave it out. Returns the lines that ran, and the
    names that the page's Python leaves.
    """
    names: dict[str, Any] = {"__name__": "page"}
    lines = []
    printed = ""
    for language, block in blocks_of(DOCS / f"{name}.md", languages):
        if language == "python":
            exec(compile(block, f"{name}.md", "exec"), names)
        if file := re.match(r"# (\w+\.toml)\n", block):
            Path(file[1]).write_text(block)
        if language == "text":
            assert not not_printed(block, printed)
        outputs = []
        for line in block.splitlines() if language == "bash" else ():
            more = further(line)
            if more is None:
                continue
            _, *arguments = shlex.split(line, comments=True)
            done = command(*arguments, *more)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            outputs.append(done.stderr + done.stdout)
            lines.append(line)
        printed = "".join(outputs) or printed
    return lines, names


def not_printed(shown: str, printed: str) -> list[str]:
    """The lines of a page's output that were not printed. Numbers may differ; ``...`` is any text."""
    lines = [line for line in shown.splitlines() if line.strip()]
    return [line for line in lines if not re.search(_pattern(line), printed, re.MULTILINE)]


def _pattern(line: str) -> str:
    parts = [re.sub(r"\d[\d.,]*", "0", part) for part in line.split("...")]
    words = [r"\s+".join(re.escape(word).replace("0", r"\d[\d.,]*") for word in part.split()) for part in parts]
    return r"^\s*" + r".*".join(rf"\s*{text}\s*" if text else "" for text in words)

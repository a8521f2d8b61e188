"""Griffe extension: reStructuredText's math and cross references in docstrings as Markdown."""

import re
import textwrap
from typing import Any

import griffe

MATH_BLOCK = re.compile(r"^( *)\.\. math::[ ]*(.*)\n((?:(?:\1 +.*)?\n)*)", re.M)


def _display(match: re.Match[str]) -> str:
    indent, first, rest = match.groups()
    lines = [first, *textwrap.dedent(rest).strip().splitlines()]
    body = "\n".join(indent + line for line in lines if line)
    return f"{indent}$$\n{body}\n{indent}$$\n\n"


def markdown(text: str) -> str:
    """Return a docstring with `.. math::`, `:math:` and `:class:` as Markdown."""
    text = MATH_BLOCK.sub(_display, text + "\n")
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":(?:class|func|meth|mod|attr|data):`~?(?:[\w.]*\.)?([\w ]+)`", r"`\1`", text)
    return text.replace("``", "`").rstrip("\n")


class ReStructuredText(griffe.Extension):
    """Converts every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

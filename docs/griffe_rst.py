"""Griffe extension: reStructuredText's math, code blocks and cross references in docstrings as Markdown."""

import re
import textwrap
from typing import Any

import griffe

MATH_BLOCK = re.compile(r"^( *)\.\. math::[ ]*(.*)\n((?:(?:\1 +.*)?\n)*)", re.M)
CODE_BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n\n?((?:(?:\1 +.*)?\n)*)", re.M)


def _code(match: re.Match[str]) -> str:
    indent, language, code = match.groups()
    return f"{indent}```{language}\n{textwrap.indent(textwrap.dedent(code).strip(), indent)}\n{indent}```\n\n"


def _display(match: re.Match[str]) -> str:
    indent, first, rest = match.groups()
    lines = [first, *textwrap.dedent(rest).strip().splitlines()]
    body = "\n".join(indent + line for line in lines if line)
    return f"{indent}$$\n{body}\n{indent}$$\n\n"


def markdown(text: str) -> str:
    """Return a docstring with `.. math::`, `.. code-block::`, `:math:` and `:class:` as Markdown."""
    text = CODE_BLOCK.sub(_code, MATH_BLOCK.sub(_display, text + "\n"))
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":(?:class|func|meth|mod|attr|data):`~?(?:[\w.]*\.)?([\w ]+)`", r"`\1`", text)
    return re.sub(r"(?<!`)``(?!`)", "`", text).rstrip("\n")


class ReStructuredText(griffe.Extension):
    """Converts every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

"""Phrases that nobody would say, in pages, messages and docstrings, each with what a native speaker writes instead.

A line may keep a phrase, with the reason in a comment: ``# plain: ...`` in Python, ``<!-- plain: ... -->`` on a page.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")])
MODULES = sorted([*ROOT.glob("pml_ext/**/*.py"), *ROOT.glob("plugins/**/*.py")])
MOST_IN_DOCSTRINGS = 20
PEOPLE = ("who", "user", "reader", "author", "one", "nobody", "somebody", "anybody", "person", "paper")
END = r"(?=\s*(?:[.,;:)]|$|\b(?:and|or|but)\b))"


def not_after(*words: str) -> str:
    """A pattern of a place that none of the words stands before."""
    return "".join(rf"(?<!\b{word}\s)" for word in words)


# A pattern leaves out what is right: "none of the images", "one of which", "is another way", "more than those of".
PHRASES = {
    r"\b(?:is|are|was|were)\s+none\b(?!\s+of\b)": "is not an image; there are no images",
    rf"{not_after('all', 'any', 'both', 'each', 'half', 'many', 'most', 'none', 'one', 'some', 'three', 'two')}"
    r"\bof\s+which\b": "whose; begin a new sentence",
    rf"{not_after('than', 'to', 'from', 'with', 'like', 'as', 'between', 'and', 'equal', 'match', 'matches')}"
    r"\bthose\s+of\b": "the scores of all folds; repeat the noun",
    rf"\b(?:is|are|was|were)\s+another{END}": "differs; has changed",
    r"\b(?:are|were)\s+others\b": "differ; have changed",
    r"\b(?:another|others)\s+than\b": "different from",
    r"\b(?:is|are|was|were)\s+told\b": "is reported; prints a line",
    rf"\bas\s+(?:they\s+are|it\s+is){END}": "unchanged; the raw features",
    rf"{not_after(*PEOPLE)}\bwants\b": "needs; must be",
    rf"{not_after(*PEOPLE)}\btells\b(?!\s+[\w ]+\b(?:apart|from)\b)": "says; prints; reports",
}


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Number of the line, phrase, and what to write instead."""
    for pattern, instead in PHRASES.items():
        for match in re.finditer(pattern, text):
            yield 1 + text.count("\n", 0, match.start()), " ".join(match[0].split()), instead


def prose_of(page: str) -> str:
    """A page without its code, with as many lines."""
    return re.sub(
        r"^ *```.*?^ *```|`[^`\n]*`", lambda code: re.sub(r"[^\n]+", "CODE", code[0]), page, flags=re.S | re.M
    )


def texts_of(module: str) -> Iterator[tuple[int, str, bool]]:
    """First line, text, and whether it is a docstring, of the texts of a module."""
    docstrings = set()
    formatted = set()
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            docstrings.add(node.body[0].value)
        if isinstance(node, ast.JoinedStr):
            formatted.update(node.values)
            yield (
                node.lineno,
                "".join(
                    getattr(value, "value", 0) if isinstance(value, ast.Constant) else "X" for value in node.values
                ),
                False,
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in formatted:
            yield node.lineno, node.value, node in docstrings


def complaints(path: Path, texts: list[tuple[int, str]]) -> list[str]:
    """A line for each phrase that has no reason beside it."""
    lines = path.read_text("utf-8").splitlines()
    found = []
    for first, text in texts:
        for line, phrase, instead in found_in(text):
            number = first + line - 1
            if "plain: " not in lines[number - 1]:
                found.append(f"{path.relative_to(ROOT)}:{number}: {phrase!r}; say: {instead}")
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A file that is none is told of.", ["is none", "is told"]),
        ("The paper gives none of them; the default is None.", []),
        ("batches, of which rank r gets one; images, one of which is gone", ["of which"]),
        ("Return those of all folds, more than those of one.", ["those of"]),
        ("unless the last module is another. This is another way.", ["is another"]),
        ("the enrolled images are others", ["are others"]),
        ("features as they are, as they are read", ["as they are"]),
        ("X wants a pair; somebody who wants one", ["wants"]),
        ("It tells copies apart and tells why.", ["tells"]),
        ("It is\nnone.", ["is none"]),
    ],
)
def test_a_phrase_is_found_where_it_is_wrong(text, wanted):
    assert sorted(phrase for _, phrase, _ in found_in(text)) == sorted(wanted)


def test_code_on_a_page_is_no_prose():
    page = "a\n```python\nx is none.\n```\nit `is none` and is none."
    assert [line for line, _, _ in found_in(prose_of(page))] == [5]


def test_a_reason_beside_a_line_is_heard(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("It is none.\nIt is none. <!-- plain: a quotation -->\n")
    assert len(complaints(page, [(1, page.read_text())])) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_have_no_forbidden_phrases(page):
    found = complaints(page, [(1, prose_of(page.read_text("utf-8")))])
    assert not found, "\n" + "\n".join(found)


def test_messages_have_no_forbidden_phrases():
    found = []
    for module in MODULES:
        texts = [(line, text) for line, text, is_docstring in texts_of(module.read_text("utf-8")) if not is_docstring]
        found += complaints(module, texts)
    assert not found, "\n" + "\n".join(found)


def test_docstrings_have_few_forbidden_phrases():
    found = []
    for module in MODULES:
        texts = [(line, text) for line, text, is_docstring in texts_of(module.read_text("utf-8")) if is_docstring]
        found += complaints(module, texts)
    assert len(found) <= MOST_IN_DOCSTRINGS, "\n" + "\n".join(found)

"""Which files of a folder are read: patterns that leave some out, and pages of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pathspec import GitIgnoreSpec
from pydantic import BaseModel

from pml_ext.errors import ConfigError, DataError, counted, first_of, shortened

from ..files import composed

IGNORE_FILE = ".pml-ext-ignore"  # of a folder: more patterns, one per line
_NAMED = 5  # patterns, in a message
Pages = Literal["first", "all"]


class FolderRules(BaseModel, frozen=True):
    """Which files and pages of a folder are images; None where nobody has chosen."""

    exclude: tuple[str, ...] | None = None  # patterns as in .gitignore, relative to the folder
    pages: Pages | None = None  # "all": each page or frame of a file is an image; default "first"

    @classmethod
    def of(cls, exclude: Sequence[str] | None = None, pages: Pages | None = None) -> FolderRules:
        """The rules of an option's values; without a pattern, none was chosen."""
        return cls(exclude=tuple(exclude) if exclude else None, pages=pages)

    def over(self, kept: FolderRules) -> FolderRules:
        """These rules, completed by the ``kept`` ones."""
        exclude = kept.exclude if self.exclude is None else self.exclude
        return FolderRules(exclude=exclude, pages=self.pages or kept.pages)


AS_KEPT = FolderRules()  # nothing is chosen


class Exclusion:
    """The patterns of a folder, with what they have left out so far."""

    def __init__(self, folder: Path | str, exclude: Sequence[str] = (), of_file: str | None = None) -> None:
        """Read ``.pml-ext-ignore``, unless its text is given, as for the address of a folder."""
        self.folder = folder
        self.images = 0
        self.folders = 0
        self._typed = exclude
        file = Path(folder, IGNORE_FILE)
        text = _text_of(file) if of_file is None else of_file
        self._of_file = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self._unused = {line: _checked(line, str(file)) for line in self._of_file}
        self._unused |= {text: _checked(text, "--exclude") for text in exclude}
        patterns = [*self._of_file, *exclude]
        self._spec = GitIgnoreSpec.from_lines(map(composed, patterns))
        self._brings_back = any(text.startswith("!") for text in patterns)

    def covers(self, name: str, is_folder: bool = False) -> bool:
        """Whether a path, relative to the folder, is left out.

        A folder is left out as a whole unless a pattern with ``!`` may bring back some of its files.
        """
        path = composed(name) + "/" * is_folder
        for text in [text for text, spec in self._unused.items() if spec.patterns[0].match_file(path)]:
            del self._unused[text]
        return not (is_folder and self._brings_back) and self._spec.match_file(path)

    @property
    def _what(self) -> str:
        numbers = [(self.images, "image"), (self.folders, "folder")]
        by = ([IGNORE_FILE] if self._of_file else []) + list(self._typed)
        found = " and ".join(counted(number, noun) for number, noun in numbers if number)
        return f"{found} by {shortened(first_of(by, _NAMED), 100)}"

    @property
    def summary(self) -> str:
        """What is left out, and patterns without effect, or an empty string."""
        texts = [f"left out {self._what}"] if self.images or self.folders else []
        if self._unused:
            unused = shortened(first_of([*map(repr, self._unused)], _NAMED), 100)
            texts.append(f"nothing {'else ' if texts else ''}matches {unused}")
        return f"{self.folder}: {'; '.join(texts)}" if texts else ""

    def check_rest(self, names: Sequence[str]) -> None:
        """Raise DataError if the patterns leave no image."""
        if not names and (self.images or self.folders):
            raise DataError(
                f"{self.folder}: no image is left; the patterns leave out {self._what}. Change --exclude or "
                f"{IGNORE_FILE}; '!*' brings everything back"
            )


def _text_of(file: Path) -> str:
    if not os.path.exists(file):
        return ""
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); save it as UTF-8 text, a pattern per line") from None


def _checked(text: str, option: str) -> GitIgnoreSpec:
    """A pattern by itself; ConfigError if it is not one."""
    try:
        spec = GitIgnoreSpec.from_lines([composed(text)])
    except ValueError:
        spec = GitIgnoreSpec([])
    if not spec.patterns or spec.patterns[0].include is None:
        raise ConfigError(
            f"{option} {shortened(repr(text), 100)}: not a pattern of .gitignore; type for example '*.png'"
        )
    return spec

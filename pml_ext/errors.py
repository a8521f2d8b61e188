"""Exceptions with exit codes of the command line."""

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class PmlExtError(Exception):
    """Base of all errors of ``pml_ext``; the command line prints it as one line.

    Args:
        text: the problem and the remedy.
        key: the wrong setting of a recipe, ``"loss.margin"``.
        source: the file that contains it.
        option: what was typed, ``"--set loss.margin=-1"``; replaces the file in the message.
    """

    exit_code = 1

    def __init__(self, *text: str, key: str = "", source: str = "", option: str = "") -> None:
        super().__init__(*text)
        self.key = key
        self.source = source
        self.option = option

    def __str__(self) -> str:
        # KeyError and ImportError, which subclasses also extend, would quote or drop the text.
        parts = (self.option or self.source, self.key, *self.args[:1])
        text = ": ".join(str(part) for part in parts if part)
        return shortened(text) if self.key else text  # values of settings may be long

    def inside(self, key: str) -> Self:
        """Put the key of the enclosing table before the setting's own."""
        self.key = f"{key}.{self.key}".strip(".")
        return self


class PluginError(PmlExtError):
    """A plugin that is broken, blocked, or in conflict with another."""

    exit_code = 2


class UnknownNameError(PmlExtError, KeyError):
    """An unknown name; the text suggests the nearest known names."""

    exit_code = 2


class ConfigError(PmlExtError, ValueError):
    """A wrong recipe, option or setting."""

    exit_code = 2


class DataError(PmlExtError):
    """Missing or unreadable data; the text contains the path."""

    exit_code = 2


class TooManyPixelsError(DataError):
    """An image with too many pixels; the text has the setting that raises the limit."""


class MissingExtraError(PmlExtError, ImportError):
    """A missing package that an extra of ``pml-ext`` installs."""

    exit_code = 2


class UnwritableError(PmlExtError, OSError):
    """A file that could not be written; the text contains the path."""


class StoppedError(BaseException):
    """A run ended by a signal; ``except Exception`` does not catch it."""

    def __init__(self, signal: int, text: str) -> None:
        super().__init__(text)
        self.signal = signal
        self.exit_code = 128 + signal


class TrainingError(PmlExtError):
    """Training that had to stop, for example because of NaN; files are kept."""


class NothingToLearnError(TrainingError):
    """No pair or triplet has contributed to the loss of the run in ``folder``."""

    def __init__(self, *text: str, folder: Path = Path()) -> None:
        super().__init__(*text)
        self.folder = folder


class PluginWarning(UserWarning):
    """A skipped plugin; the text has its name and the reason."""


class RecipeWarning(UserWarning):
    """Settings of a recipe that an option drops."""


class TrainingWarning(UserWarning):
    """A warning during training, which a run shows and stores with its metrics."""


_REMEDIES = {  # by the number of an error of the operating system
    errno.ENOSPC: ". Make room on the disk, or choose a folder on another one",
    errno.EDQUOT: ". Delete files of yours, or choose a folder on another disk",
    errno.EACCES: ". Choose a folder that you may write to",
    errno.EROFS: ". Choose a folder that you may write to",
    errno.ENAMETOOLONG: ". Choose a shorter name",
}


def remedy_of(error: OSError) -> str:
    """What to do about a file that cannot be written, or an empty string."""
    return _REMEDIES.get(error.errno or 0, "")


def first_of(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, separated by commas, with an ellipsis if there are more."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append("...")
    return ", ".join(shown)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as ``"2 images"``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Error text for an unknown name, with the nearest ones."""
    known = list(dict.fromkeys(known))
    name = shortened(name, 100)
    lowered = {other.lower(): other for other in reversed(known)}
    near = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.4)]
    for other in known:
        if other.rsplit("/", 1)[-1] == name and other not in near:
            near.append(other)
    if near:
        listed = f"nearest: {', '.join(near)}"
    elif known:
        listed = f"known: {first_of(known, 12)}"
    else:
        listed = "known: none"
    return f"no {what} {name!r}; {listed}"


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Convert an import error to :class:`MissingExtraError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra(extra, what, error) from error


def missing_extra(extra: str, what: str, error: ModuleNotFoundError) -> MissingExtraError:
    """The error that ``what`` needs ``extra``."""
    missing = f"{what} needs the package {error.name!r}, which is not installed"
    return MissingExtraError(f'{missing}. Run: pip install "pml-ext[{extra}]"')


def printable(text: str) -> str:
    """Escape line breaks, control characters, and bytes that are not UTF-8."""
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


def shortened(text: object, most: int = 600) -> str:
    """One printable line of at most ``most`` characters, with an ellipsis if cut."""
    whole = str(text)
    if len(whole) > 8 * most:  # skip the middle of a megabyte
        whole = f"{whole[: 4 * most]} {whole[-4 * most :]}"
    line = printable(" ".join(whole.split()))
    if len(line) <= most:
        return line
    kept = most - 5
    return f"{line[: kept - kept // 3]} ... {line[len(line) - kept // 3 :]}"


def one_line(error: BaseException) -> str:
    """An error's class and the first line of its text."""
    lines = str(error).strip().splitlines()
    if lines:
        return f"{type(error).__name__}: {printable(lines[0])}"
    return type(error).__name__

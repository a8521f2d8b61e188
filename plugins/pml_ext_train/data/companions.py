"""Companions: files that belong to a photograph, such as raw data, edits or the film of a live photograph.

A companion lies in the photograph's folder and has its stem (``IMG_1.CR2``, ``IMG_1.xmp``) or its whole name
(``IMG_1.JPG.xmp``).
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from .reading import IMAGE_ENDINGS

COMPANION_ENDINGS = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".kdc", ".mrw", ".nef", ".nrw", ".orf"),
    *(".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"),
    *(".aae", ".xmp", ".mov", ".mp4"),
)
"""Endings of companions, in lower case."""


def companions_in(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """By the name of a photograph: its companions, each with all photographs that share it."""
    names = list(names)
    companions = [name for name in names if name.lower().endswith(COMPANION_ENDINGS)]
    if not companions:
        return {}
    owners = defaultdict[str, list[str]](list)  # by what stands before a companion's ending
    for name in names:
        if name.lower().endswith(IMAGE_ENDINGS):
            owners[name].append(name)
            owners[os.path.splitext(name)[0]].append(name)
    found = defaultdict[str, dict[str, list[str]]](dict)
    for companion in sorted(companions):
        sharing = owners.get(os.path.splitext(companion)[0], [])
        for name in sharing:
            found[name][companion] = sharing
    return found


class Companions:
    """The companions of photographs; each folder is listed once."""

    def __init__(self) -> None:
        self._in_folder: dict[Path, dict[str, dict[str, list[str]]]] = {}

    def of(self, photograph: Path) -> dict[str, list[str]]:
        """The names of a photograph's companions, each with all photographs that share it."""
        folder = photograph.parent
        if folder not in self._in_folder:
            with os.scandir(folder) as entries:
                files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            self._in_folder[folder] = companions_in(files)
        return self._in_folder[folder].get(photograph.name, {})

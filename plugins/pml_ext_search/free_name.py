"""Names of files that are not taken."""

from __future__ import annotations

import os
from pathlib import Path


def free_name(target: Path) -> Path:
    """Return a path that is not taken: ``photo.jpg``, else ``photo-2.jpg`` and so on."""
    number = 2
    free = target
    while os.path.lexists(free):
        free = target.with_name(f"{target.stem}-{number}{target.suffix}")
        number += 1
    return free

"""Which run belongs to a folder of photographs."""

import hashlib
import os
from pathlib import Path

from pml_ext_train.data import cache_folder
from pml_ext_train.files import DamagedError, read_json, write_json
from pml_ext_train.records import is_finished

FILE = "run.json"


def home_of(folder: Path) -> Path:
    """The place in the user's cache for a folder of photographs, which itself is never written to."""
    path = os.path.realpath(folder)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    stem = "".join(letter if letter.isalnum() else "-" for letter in Path(path).name)[:40]
    return cache_folder("folders") / f"{stem or 'folder'}-{digest}"


def remember(folder: Path, run: Path) -> None:
    """Store which run belongs to a folder."""
    home = home_of(folder)
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / FILE, {"folder": os.path.realpath(folder), "run": os.path.realpath(run)})


def remembered(folder: Path) -> Path | None:
    """The finished run of a folder; None without one, or if it was removed."""
    file = home_of(folder) / FILE
    if not file.is_file():
        return None
    try:
        run = Path(read_json(file)["run"])
    except (DamagedError, KeyError, TypeError):  # which is written again with the next run
        return None
    return run if is_finished(run) else None

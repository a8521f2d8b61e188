"""The search for copies in a thread, and what somebody keeps."""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pml_ext.errors import ConfigError, DataError, PmlExtError, shortened
from pml_ext.registry import service
from pml_ext_train.files import composed, path_bytes
from pml_ext_train.retrieval import CopiesService, FoundCopies

from .collection import BrowsedRun

RULES = ("most-pixels", "least-compressed", "oldest")
SHOWN_OF_GROUP = 60  # images


class CopiesState(NamedTuple):
    """The progress of the search; ``phase`` is "none", "running", "done", "failed" or "stopped"."""

    phase: str = "none"
    read: int = 0  # images so far; of files with the same bytes, one is read
    images: int = 0  # to read
    problem: str = ""
    folder: str = ""  # the sub-folder whose images are compared
    keep: str = RULES[0]
    radius: float | None = None


class ShownGroup(NamedTuple):
    """A group of copies on the page."""

    key: str  # of its kind and paths, in their order: the same for the same group of a later search
    place: int  # from 0
    group: Any  # kind, images, what they differ in, bytes to spare
    numbers: Sequence[int]  # of the images, in the collection


class _StopSearchError(Exception):
    """Somebody stopped the search."""


class CopiesSearch:
    """The search for copies of a collection, one at a time, for several threads."""

    def __init__(self, collection: BrowsedRun) -> None:
        self._collection = collection
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.thread: threading.Thread | None = None
        self.state = CopiesState()
        self._found: FoundCopies | None = None
        self._places: dict[str, int] = {}  # of groups, by key, in their order

    def begin(self, folder: str = "", keep: str = RULES[0], radius: float | None = None) -> None:
        """Look for copies below a sub-folder, in a thread, unless a search is running."""
        with self._lock:
            if self.thread is not None and self.thread.is_alive():
                return
            self._stop.clear()
            self._found = None
            self.state = CopiesState("running", folder=folder, keep=keep, radius=radius)
            self.thread = threading.Thread(target=self._search, name="copies")
            self.thread.start()

    def stop(self) -> None:
        """Let the search end at the next image."""
        self._stop.set()

    def _search(self) -> None:
        try:
            self._find()
        except _StopSearchError:
            self._change(phase="stopped")
        except (PmlExtError, OSError) as error:
            self._change(phase="failed", problem=str(error))
        except BaseException as error:
            self._change(phase="failed", problem=f"{type(error).__name__}: {shortened(error)}")
            raise

    def _find(self) -> None:
        state = self.state
        collection = self._collection
        start = f"{composed(state.folder)}/" if state.folder else ""
        gone = set(collection.missing)
        names = [path for path in collection.paths if path not in gone and composed(path).startswith(start)]
        if not names:
            raise DataError(f"{collection.folder}: no image files below {state.folder or 'it'}")
        self._change(images=len(names))
        found = _service().find(collection.folder, names, state.radius, state.keep, listener=self._listen)
        self._places = {_key_of(group): place for place, group in enumerate(found.groups)}
        self._found = found
        self._change(phase="done")

    def _listen(self, read: int) -> None:
        if self._stop.is_set():
            raise _StopSearchError
        self._change(read=read)

    def _change(self, **changes: Any) -> None:
        self.state = self.state._replace(**changes)

    # What was found

    @property
    def found(self) -> FoundCopies:
        """The groups; DataError before a search has ended."""
        if self._found is None:
            raise DataError("the copies have not been looked for; press Find copies")
        return self._found

    def shown(self, start: int, count: int) -> list[ShownGroup]:
        """Groups from a place on."""
        groups = []
        for place, group in enumerate(self.found.groups[start : start + count], start):
            numbers = [self._collection.number_of(image.path) for image in group.images]
            groups.append(ShownGroup(_key_of(group), place, group, numbers))
        return groups

    def chosen(self, shown: Iterable[str], kept: Iterable[str]) -> FoundCopies:
        """The copies with what somebody keeps.

        Args:
            shown: keys of the groups that somebody saw, each with a kept image.
            kept: texts ``KEY.PLACE``: a group's key, and the place of a kept image. An earlier search's groups are
                ignored.

        ConfigError if a shown group is not found, or has no kept image.
        """
        found = self.found
        seen = set(shown)
        chosen: dict[int, list[str]] = {}
        for text in kept:
            key, _, number = text.partition(".")
            if key not in self._places:
                continue
            place = self._places[key]
            images = found.groups[place].images
            if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= len(images):
                raise ConfigError(f"keep={text[:40]}: wanted the key of a group, and the place of an image in it")
            chosen.setdefault(place, []).append(images[int(number)].path)
        for key in sorted(seen):
            if key not in self._places:
                raise ConfigError("these groups belong to an earlier search; load the page again")
            if self._places[key] not in chosen:
                raise ConfigError(f"group {self._places[key] + 1}: no image is kept; keep one or more")
        return _service().keep_chosen(found, chosen)

    def as_text(self, shown: Iterable[str], kept: Iterable[str], form: str) -> str:
        """The copies with what somebody keeps, as ``"csv"`` or JSON."""
        chosen = self.chosen(shown, kept)
        if form == "csv":
            return chosen.as_csv()
        return json.dumps(chosen.to_spare().as_json(), indent=2) + "\n"


def _service() -> CopiesService:
    copies: CopiesService = service("copies", "copies in pml-ext browse")
    return copies


def _key_of(group: Any) -> str:
    digest = hashlib.sha256(group.kind.encode())
    for image in group.images:
        digest.update(b"\0" + path_bytes(image.path))
    return digest.hexdigest()[:20]

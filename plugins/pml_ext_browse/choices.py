"""What somebody has typed and decided on the page: names of groups, and labels of images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pml_ext.errors import DataError, PmlExtError
from pml_ext_train.files import DamagedError, read_json, write_json
from pml_ext_train.retrieval import ImageClusters

FILE = "browse.json"  # beside a collection


class GroupName(NamedTuple):
    """A group's name, and how many of its images have it."""

    name: str
    images: int


class Choices:
    """Names and labels of a folder's images by path, kept in a file of the collection."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._file = place / FILE
        self._folder = str(folder.resolve())
        kept = self._read().get(self._folder, {})
        self.names: dict[str, str] = dict(kept.get("names", {}))
        self.labels: dict[str, str] = dict(kept.get("labels", {}))
        self.problem = ""  # why the last choices could not be written

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            return {}
        try:
            return read_json(self._file)
        except DamagedError as error:
            raise DataError(f"{self._file}: damaged ({error}); to begin without names, delete it") from None

    def save(self) -> None:
        """Write the file; a failure is kept as ``problem``."""
        try:
            write_json(self._file, self._read() | {self._folder: {"names": self.names, "labels": self.labels}})
            self.problem = ""
        except (PmlExtError, OSError) as error:
            self.problem = f"names and labels are lost when the page closes: {error}; save them as a table"

    def names_of(self, grouping: ImageClusters, paths: Sequence[str]) -> dict[int, GroupName]:
        """The name of each group, also if another clustering was named.

        A name goes to the group with most of its images, and to groups that mostly consist of them.
        """
        counts: Counter[tuple[int, str]] = Counter()
        for number, path in zip(grouping.numbers.tolist(), paths, strict=True):
            if number >= 0 and path in self.names:
                counts[number, self.names[path]] += 1
        sizes = {cluster.number: len(cluster.members) for cluster in grouping.clusters}
        largest: dict[str, int] = {}  # the group with most images of a name
        found: dict[int, GroupName] = {}
        for (number, name), images in counts.most_common():
            if largest.setdefault(name, number) == number or 2 * images > sizes[number]:
                found.setdefault(number, GroupName(name, images))
        return found

    def name(self, given: Mapping[int, str], grouping: ImageClusters, paths: Sequence[str]) -> None:
        """Name the images of groups; an empty text takes a name away. Unchanged names are left alone."""
        before = {number: each.name for number, each in self.names_of(grouping, paths).items()}
        changed = {number: name for number, name in given.items() if name != before.get(number, "")}
        if not changed:
            return
        replaced = {before.get(number) for number in changed} - {*(before | changed).values()}
        self.names = {path: name for path, name in self.names.items() if name not in replaced}
        for cluster in grouping.clusters:
            if cluster.number in changed:
                of_cluster = dict.fromkeys((paths[member] for member in cluster.members), changed[cluster.number])
                self.names |= of_cluster
        self.names = {path: name for path, name in self.names.items() if name}
        self.save()

"""The sub-folders that name the classes of images."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from pml_ext_train.data import SPLIT_FOLDERS, VALIDATION_FOLDERS
from pml_ext_train.files import composed


class ClassFolders(BaseModel, frozen=True):
    """The sub-folders in an image's path that name its class."""

    levels: int | None = 1  # how many, from the outermost; None: all
    below_splits: bool = False  # whether the outermost sub-folders are train and test, which name no class

    @classmethod
    def of_paths(cls, paths: Iterable[str], levels: int | None) -> ClassFolders:
        """The class folders of these images; below ``train`` and ``test``, if these are outermost."""
        outermost = set()
        for path in paths:
            outermost.update(_folders_of(path)[:1])
        below_splits = {*SPLIT_FOLDERS} <= outermost <= {*SPLIT_FOLDERS, *VALIDATION_FOLDERS}
        return cls(levels=levels, below_splits=below_splits)

    def places_of(self, name: str) -> list[str]:
        """The folders that images of a class may lie in."""
        if not self.below_splits:
            return [name]
        return [f"{split}/{name}" for split in (*SPLIT_FOLDERS, *VALIDATION_FOLDERS)]

    def class_of(self, path: str) -> str:
        """The class of an image, or an empty string."""
        folders = _folders_of(path)
        if self.below_splits:
            folders = folders[1:]
        return composed("/".join(folders[: self.levels]))


def _folders_of(path: str) -> list[str]:
    """The sub-folders in a path; for an image in a shard, inside the shard."""
    return path.rpartition(".tar/")[2].split("/")[:-1]

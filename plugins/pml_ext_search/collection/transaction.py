"""Transactions on a collection's database."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from pml_ext_train.retrieval import Vectors

from .class_folders import ClassFolders
from .state import Image, State, crc_of, state_of


class Transaction:
    """A transaction on a collection, with its state and vectors."""

    def __init__(self, connection: sqlite3.Connection, mapped: Callable[[State], Vectors]) -> None:
        self.connection = connection
        ((about, crc),) = connection.execute("SELECT about, crc FROM collection").fetchall()
        self.state = state_of(about, crc)
        self.vectors = mapped(self.state)

    def save(self, **changes: Any) -> None:
        """Change the state."""
        self.state = self.state.model_copy(update=changes)
        text = self.state.model_dump_json()
        self.connection.execute("UPDATE collection SET about = ?, crc = ?", (text, zlib.crc32(text.encode())))

    def is_intact(self, vector: Any, crc: Any, *values: object) -> bool:
        """Whether a row and its vector have the row's checksum."""
        in_file = isinstance(vector, int) and 0 <= vector < len(self.vectors)
        return in_file and crc_of(self.vectors[vector].data, *values) == crc

    def images(self, where: str = "", *values: object) -> Iterator[tuple[Image, bool]]:
        """Rows of ``images``, each with whether it and its vector are undamaged."""
        query = f"SELECT id, path, class_number, size, fingerprint, vector, crc FROM images {where}"
        index = self.state.index
        classes = None if index is None else index.classes
        class_folders = ClassFolders() if index is None else index.class_folders
        for id, path, class_number, size, fingerprint, vector, crc in self.connection.execute(query, values):
            if isinstance(path, (bytes, str)):
                text = os.fsdecode(path)
            else:
                text = repr(path)
            is_intact = self.is_intact(vector, crc, id, path, class_number, size, fingerprint)
            class_name = ""
            if classes is None:
                class_name = class_folders.class_of(text)
            elif isinstance(class_number, int) and 0 <= class_number < len(classes):
                class_name = classes[class_number]
            else:
                is_intact = False
            yield Image(id, text, class_number, size, fingerprint, vector, class_name), is_intact

"""Pictures of queries and their answers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext_train.files import file_stat

from ..collection.problems import RetrievalWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pml_ext_train.report import Cell

    from .query import Answer

PICTURED = 50  # answers of a query in a picture
_PANELS = 600  # maximum images in a picture, which keeps its height below 65,536 pixels


def answers_picture(answers: Sequence[Answer], folder: Path, channels: int) -> Figure:
    """Draw queries, each with at most 50 answers, framed green (right) or red (wrong)."""
    from pml_ext_train.report import BLUE, PictureReader, answer, gallery, short_name

    reader = PictureReader(channels)
    rows = []
    most = min(max((len(each.paths) for each in answers), default=0), PICTURED)
    drawn = answers[: max(1, _PANELS // (most + 1))]
    for each in drawn:
        query = Path(each.query)
        row: list[Cell | None] = [None]
        if file_stat(query) is not None:
            caption = f"{short_name(query.name)}\n{short_name(each.query_class or '')}".strip()
            row = [(reader(query), caption, BLUE)]
        answers_of_query = zip(each.paths, each.distances, each.classes, strict=True)
        for path, distance, name in itertools.islice(answers_of_query, PICTURED):
            lines = [f"{distance:.2f}"]
            if name:
                lines.append(short_name(name))
            lines.append(short_name(Path(path).name))
            right = None if each.query_class is None else name == each.query_class
            row.append(answer(reader(folder / path), "\n".join(lines), right))
        rows.append(row)
    figure = gallery(rows)
    reader.warn("the picture has")
    if len(drawn) < len(answers):
        text = f"the picture has the first {len(drawn)} of {len(answers)} queries"
        warnings.warn(text, RetrievalWarning, stacklevel=3)
    return figure

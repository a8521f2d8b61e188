"""Images whose neighbors belong to another class than their label says."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext.errors import DataError
from pml_ext_train.data import table_text
from pml_ext_train.files import write_text
from pml_ext_train.retrieval import Numbers

from ..collection.embedded import Embedded
from .selection import ListedImages

NEIGHBORS = 5  # of each class whose similarities are averaged
COLUMNS = ("path", "class", "likely", "margin")
_ROWS = 1024  # images that are compared with all others at a time


@dataclasses.dataclass(frozen=True)
class SuspiciousLabels(ListedImages):
    """The images with a class, the most suspicious first."""

    likely: list[str]  # the most similar other class of each
    margins: NDArray[np.float64]  # by how much that class is more similar than the given one; below 0: less
    alone: int  # images that no other image of their class can be compared with; they are left out

    @property
    def count(self) -> int:
        """How many images are more similar to another class."""
        return int((self.margins > 0).sum())

    def as_json(self, shown: int) -> dict[str, Any]:
        """What ``labels --json`` prints of the first images."""
        columns = zip(self.paths, self.classes, self.likely, self.margins.tolist(), strict=True)
        listed = [dict(zip(COLUMNS, row, strict=True)) for row in columns]
        return {
            "folder": str(self.embedded.folder),
            "images": len(self.rows),
            "suspicious": self.count,
            "alone": self.alone,
            "labels": listed[:shown],
        }

    def write_table(self, file: Path) -> None:
        """Write a CSV table of all images; ``fit FOLDER --labels`` reads its column ``class`` after corrections."""
        margins = [f"{margin:.4f}" for margin in self.margins]
        write_text(file, table_text(COLUMNS, zip(self.paths, self.classes, self.likely, margins, strict=True)))


def suspicious_labels(embedded: Embedded, groups: Sequence[str] | None = None) -> SuspiciousLabels:
    r"""Order the images by how much more similar they are to another class than to their own.

    The similarity of an image to a class is the mean cosine to the five images of the class that are nearest to it; the
    image itself is left out:

    .. math:: s(i, c) = \frac15 \sum_{j \in \text{top}_5(i, c)} \cos(x_i, x_j)

    A few wrong labels in a class hardly change it. A vote of the nearest neighbors has many ties and finds fewer.

    Args:
        embedded: the images; images without a class, or alone in it, are left out.
        groups: the group of each image, such as a burst; images of one group are not compared. Empty for none.

    Raises:
        DataError: fewer than two classes.

    *Cost:* N x N x D multiplications for N images, and N x C numbers for C classes.
    """
    names = np.array(embedded.classes)
    rows = np.flatnonzero(names != "")
    classes, labels = np.unique(names[rows], return_inverse=True)
    if len(classes) < 2:
        found = ", ".join(classes) or "no class"
        raise DataError(f"{embedded.folder}: found {found}; labels need two classes or more, a folder each")
    order = np.argsort(labels, kind="stable")  # class after class
    rows = rows[order]
    given = torch.from_numpy(labels[order])
    points = nn.functional.normalize(embedded.embeddings[rows].double().cpu())
    group_numbers = _numbers_of(groups, rows)
    similarity = torch.empty(len(rows), len(classes), dtype=torch.float64)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        similarity[part] = _similarity_to_classes(points, given, group_numbers, part, len(classes))
    own = similarity.gather(1, given[:, None])
    others = similarity.scatter(1, given[:, None], -torch.inf)
    best, likely = others.max(1)
    margins = (best - own[:, 0]).numpy()
    compared = np.flatnonzero(np.isfinite(margins))
    first = compared[np.argsort(-margins[compared], kind="stable")]
    names_of_likely = classes[likely.numpy()[first]].tolist()
    return SuspiciousLabels(embedded, rows[first].tolist(), names_of_likely, margins[first], len(rows) - len(first))


def _numbers_of(groups: Sequence[str] | None, rows: Numbers) -> Tensor:
    """A number for each row's group; rows without a group have numbers of their own."""
    if groups is None:
        return torch.arange(len(rows))
    texts = [groups[row] for row in rows]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts)) if text}
    return torch.tensor([numbers.get(text, len(texts) + place) for place, text in enumerate(texts)])


def _similarity_to_classes(points: Tensor, labels: Tensor, groups: Tensor, part: slice, classes: int) -> Tensor:
    """Similarities of some rows to each class, ``[T, C]``; minus infinity if all of a class is in the row's group."""
    cosines = points[part] @ points.T
    compared = groups[part, None] != groups
    sizes = torch.bincount(labels, minlength=classes).tolist()
    similarity = torch.empty(len(cosines), classes, dtype=torch.float64)
    columns = zip(torch.split(cosines, sizes, 1), torch.split(compared, sizes, 1), strict=True)
    for number, (of_class, counts) in enumerate(columns):
        nearest = of_class.masked_fill(~counts, -torch.inf).topk(min(NEIGHBORS, sizes[number]), 1).values
        found = nearest > -torch.inf
        similarity[:, number] = nearest.masked_fill(~found, 0).sum(1) / found.sum(1)  # NaN where nothing is compared
    return similarity.nan_to_num(nan=-torch.inf)

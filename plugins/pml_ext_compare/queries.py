"""The same queries by several runs, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import DataError, one_line
from pml_ext_train.report import GRAY, ReportFigure, ReportTable, answer, draw, gallery, short_name
from pml_ext_train.training import nearest, open_run

from .groups import Group

QUERIES = 8  # drawn side by side


@dataclass(frozen=True)
class NearestImages:
    """The nearest image of each query by one run."""

    indices: Tensor  # [N], in the gallery
    is_right: Tensor  # [N], bool: it has the query's class
    has_answer: Tensor  # [N], bool: the gallery has another image of the query's class


def compare_queries(
    groups: Sequence[Group], result: Mapping[str, Any], device: str, data: Path | None
) -> tuple[list[ReportTable], list[ReportFigure]]:
    """Count the queries that one row finds and the baseline misses, and draw some of them.

    Uses the first seed of each row, and Euclidean distance.
    """
    first_run = None  # whose images are drawn; all runs have the same
    by_name: dict[str, NearestImages] = {}
    problems = []
    for group in groups:
        if not group.folders:
            continue
        try:
            seed, folder = min(group.folders.items())
            run = open_run(folder, seed, device, data)
            searched = nearest(run, run.queries)
            first_run = first_run or run
            first_labels = first_run.images(first_run.queries).labels
            if not np.array_equal(run.images(run.queries).labels, first_labels):
                raise DataError("its test images differ")
            by_name[group.name] = NearestImages(
                indices=searched.indices[:, 0].cpu(),
                is_right=searched.right[:, 0].cpu(),
                has_answer=searched.relevant > 0,
            )
        except Exception as error:  # moved data or a damaged file: draw the page without the row
            problem = str(error) if isinstance(error, DataError) else one_line(error)
            problems.append(ReportFigure(f"Queries of {group.name}", problem=problem))
    if first_run is None or len(by_name) < 2:
        return [], problems

    baseline = result["differences_from"]
    if baseline not in by_name:
        baseline = next(iter(by_name))
    return [_counts_table(by_name, baseline)], [_side_by_side(by_name, first_run), *problems]


def _counts_table(by_name: Mapping[str, NearestImages], baseline: str) -> ReportTable:
    base_right = by_name[baseline].is_right
    rows = []
    for name, images in by_name.items():
        if name == baseline:
            continue
        right = images.is_right
        counts = [str(int(each.sum())) for each in (right & ~base_right, base_right & ~right, right & base_right)]
        rows.append([name, *counts])

    answerable = int(by_name[baseline].has_answer.sum())
    queries = f"{answerable:,}"
    if answerable < len(base_right):
        queries += f" that have a right answer ({len(base_right) - answerable:,} others have none)"
    caption = f"Queries whose nearest image is right, of {queries}; the first seed of each row, beside {baseline}."
    return ReportTable("Queries", ["row", "found here alone", "found by the baseline alone", "by both"], rows, caption)


def queries_that_differ(by_name: Mapping[str, NearestImages], count: int = QUERIES) -> list[int]:
    """The queries on which the runs differ most; equal ones in a fixed random order."""
    finders = torch.stack([images.is_right for images in by_name.values()]).sum(dim=0)
    smaller_party = torch.minimum(finders, len(by_name) - finders)
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(smaller_party), generator=generator)
    by_difference = smaller_party[shuffled].argsort(descending=True, stable=True)
    return shuffled[by_difference][:count].tolist()  # type: ignore[no-any-return]


def _side_by_side(by_name: Mapping[str, NearestImages], run: Any) -> ReportFigure:
    chosen = queries_that_differ(by_name)

    def drawing() -> Any:
        queries = run.images(run.queries)
        searched = run.images(run.data.gallery_of(run.queries))
        rows = []
        for query in chosen:
            name = short_name(queries.class_names[queries.labels[query]])
            row = [(queries.image(query), f"query\n{name}", GRAY)]
            for number, images in enumerate(by_name.values(), start=1):
                index = int(images.indices[query])
                row.append(answer(searched.image(index), f"{number}", bool(images.is_right[query])))
            rows.append(row)
        return gallery(rows)

    legend = "; ".join(f"{number}: {name}" for number, name in enumerate(by_name, start=1))
    caption = f"The nearest image by each row, of queries about which the rows differ most. {legend}."
    return draw("The same queries side by side", drawing, caption, keeps_colors=True)

"""Labels that come later: a table of paths and classes of a folder with kept features.

The table is copied, with absolute paths and readable files only. A run of the copy reads no image: it compares closed
forms on the kept features, and fits the best one.
"""

import csv
import dataclasses
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pml_ext.distributed import choose_device
from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import CLUSTERS_COLUMNS, Exclusion, is_empty, read_rows, table_text
from pml_ext_train.files import as_spelled, write_text
from pml_ext_train.recipe import Override, build_dataset, flat, load_recipe, overrides_of, preprocessing_of, tables_of
from pml_ext_train.records import tables_of_run
from pml_ext_train.retrieval import EmbeddingListener

from . import folder_runs
from .framing import CUTS, SQUASH
from .one_pass import keep_features
from .settings import Settings
from .trunk import LITE0, SMALL_NETWORK, Trunk, trunk_of_table
from .unlabeled import IMAGES, unlabeled_settings

FRAMING = (*CUTS, SQUASH)
NOTHING_IS_READ: Settings = {"data.unreadable": "stop", "data.cache": "none"}
Rows = list[tuple[str, dict[str, Any]]]  # with the place of each, such as "line 5"
# Columns without classes in tables of cluster, select and labels
WRITTEN = {"rank", "distance", "likely", "margin", *CLUSTERS_COLUMNS} - {"path", "class"}
CLASS = "class"  # the class column in tables of clusters; open-metric-learning has "label"


@dataclasses.dataclass(frozen=True)
class LabeledTable:
    """A copy of a table of classes, and the settings of the kept features."""

    file: Path
    settings: list[Override]
    trunk: Trunk  # of the features
    sources: Mapping[str, str]  # of errors about the copy and its lines: the given table and its rows


def labeled_table(
    folder: Path,
    labels: Path,
    trunk: Trunk | None,
    overrides: Sequence[Override],
    device: str,
    listener: EmbeddingListener,
    exclude: Sequence[str] = (),
) -> LabeledTable:
    """Copy the rows with a class and a readable image, and compute missing features of the folder.

    Patterns of ``exclude`` and of the folder's ``.pml-ext-ignore`` leave out images and their rows. The trunk defaults
    to that of the folder's run. DataError for a table without paths and classes, and for missing files.
    """
    if not folder.is_dir():
        raise ConfigError(f"--labels {labels}: the table belongs to a folder of images; {folder} is not a folder")
    folder = folder.expanduser().resolve()
    columns, placed = _read(folder, labels, overrides)
    trunk, framing = _seen_as(folder, trunk)
    patterns: Settings = {"data.exclude": [*exclude]} if exclude else {}
    own = {"data.path": str(folder)} | patterns | unlabeled_settings(trunk) | framing
    recipe = load_recipe(IMAGES, overrides_of(own))
    splits = build_dataset(recipe.data, None)
    preprocessing, _ = preprocessing_of(recipe, splits)
    found = keep_features(recipe, splits.train, preprocessing, choose_device(device), listener.step, listener.embedding)
    if found.note:
        listener.warn(found.note)

    unreadable = {os.path.realpath(path) for path in found.unreadable}
    exclusion = Exclusion(folder, exclude)
    readable = [
        (place, row)
        for place, row in placed
        if os.path.realpath(row["path"]) not in unreadable
        and not exclusion.covers(os.path.relpath(row["path"], folder))
    ]
    if not readable:
        raise DataError(f"{labels}: none of its {len(placed)} images can be read, or patterns leave them out")
    listener.step(f"{labels}: classes of {len(readable):,} of {len(found.readable):,} images")
    text = table_text(columns, ([row[name] for name in columns] for _, row in readable))
    home = folder_runs.home_of(folder)
    home.mkdir(parents=True, exist_ok=True)
    table = home / f"labels-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}.csv"
    write_text(table, text)
    sources = {str(table): str(labels)}
    lines = csv.reader(io.StringIO(text, newline=""))
    next(lines)
    for (place, _), _ in zip(readable, lines, strict=True):
        sources[f"{table}, line {lines.line_num}"] = f"{labels}, {place}"
    return LabeledTable(table, overrides_of(framing | NOTHING_IS_READ), trunk, sources)


def _read(folder: Path, labels: Path, overrides: Sequence[Override]) -> tuple[list[str], Rows]:
    """Columns and rows of a table, with the column ``label`` and absolute paths."""
    if not labels.is_file():
        raise DataError(f"{labels}: no such file; wanted a .csv or .parquet table with the columns path and class")
    given = tables_of(overrides).get("data")
    if isinstance(given, dict) and "columns" in given:
        raise ConfigError("data.columns: a table of --labels has the columns path and class; rename them")
    columns, lines = read_rows(labels, "--labels TABLE.csv")
    class_column = next((name for name in ("label", CLASS) if name in columns), None)
    if class_column is None or "path" not in columns:
        raise DataError(
            f"{labels}: found the columns {', '.join(columns) or 'none'}; wanted path, relative to {folder}, and class"
        )
    rows: Rows = []
    for place, line in lines:
        row = {name: line[name] for name in columns if name not in WRITTEN}
        row["label"] = row.pop(class_column)
        row["path"] = str(folder / as_spelled(folder, str(row["path"]).strip()))
        if not is_empty(row["label"]):  # an image that nobody has named yet
            rows.append((place, row))
    if not rows:
        raise DataError(f"{labels}: found no class in its {len(lines):,} rows; fill the column {class_column}")
    missing = [row["path"] for _, row in rows if not os.path.isfile(row["path"])]
    if missing:
        raise DataError(
            f"{missing[0]}: no such file, though {labels} lists it ({len(missing)} of {len(rows)} are missing); its "
            f"paths are relative to {folder}"
        )
    copied = ["label" if name == class_column else name for name in columns if name not in WRITTEN]
    return copied, rows


def _seen_as(folder: Path, trunk: Trunk | None) -> tuple[Trunk, Settings]:
    """The trunk and its framing, which follows the folder's run if that has the same trunk."""
    known = folder_runs.remembered(folder)
    wanted = None
    if known is not None:
        tables = tables_of_run(known)
        table = tables["model"]["trunk"]
        if table.get("name") != SMALL_NETWORK:
            of_run = trunk_of_table(table)
            trunk = trunk or of_run
            wanted = tables if trunk == of_run else None
    trunk = trunk or LITE0
    if wanted is None:
        wanted = load_recipe(IMAGES, overrides_of(unlabeled_settings(trunk))).as_dict()
    values: Mapping[str, Any] = flat(wanted)
    settings = {key: values[key] for key in FRAMING if values.get(key) is not None}
    return trunk, settings | {SQUASH: bool(values.get(SQUASH))}

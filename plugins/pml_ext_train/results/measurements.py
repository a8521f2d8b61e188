"""Measurements of finished runs by tools, in ``metrics.json``, report and export."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pml_ext.errors import ConfigError, DataError, shortened

from ..files import is_unchanged, locked_folder, recover, replace_file
from ..networks.network import By
from ..records import METRICS, REPORT, WRITTEN, check_unchanged, read_metrics, write_run_json
from ..report import ReportTable, render

KEY = "measured"  # in metrics.json
_SECTION = re.compile(r"<!-- measured -->.*?<!-- end of measured -->", re.DOTALL)


class Measurement(BaseModel, frozen=True):
    """Numbers of a finished run, with their meaning."""

    title: str
    text: str  # how the numbers were measured, and how they are used; without private paths
    by: By  # what images are compared by, which an export has to give
    titles: dict[str, str]  # of the values that the report shows, by their names
    values: dict[str, float | int | str | None]


def add_measurement(folder: Path, name: str, measurement: Measurement) -> None:
    """Write or replace a measurement in ``metrics.json`` and in an unedited report.

    DataError for damaged metrics, ConfigError if the run is being written.
    """
    taken = ConfigError(f"{folder} is being written by another run; {measurement.title!r} was not added to its metrics")
    with locked_folder(folder, taken):
        recover(folder, WRITTEN)
        check_unchanged(folder, METRICS)
        metrics = read_metrics(folder / METRICS)
        metrics = {**metrics, KEY: {**metrics.get(KEY, {}), name: measurement.model_dump()}}
        write_run_json(folder, METRICS, metrics)
        if not is_unchanged(folder, REPORT):
            return
        report = (folder / REPORT).read_text("utf-8")
        section = render("measured", measured=tables_of(metrics)).strip()
        text = _SECTION.sub(lambda _: section, report)
        if text != report:
            replace_file(folder, REPORT, lambda path: path.write_text(text, "utf-8"))


def measurements_of(metrics: Mapping[str, Any]) -> dict[str, Measurement]:
    """Return the measurements in ``metrics.json`` by name; DataError if one is damaged."""
    found = {}
    for name, values in metrics.get(KEY, {}).items():
        try:
            found[name] = Measurement.model_validate(values)
        except ValidationError as error:
            raise DataError(f"{METRICS}: the measurement {name!r} is damaged ({shortened(error, 100)})") from None
    return found


def tables_of(metrics: Mapping[str, Any]) -> list[ReportTable]:
    """Return the report's tables of measurements."""
    measured = measurements_of(metrics).values()
    return [ReportTable(each.title, ["", ""], [*shown_values(each)], each.text) for each in measured]


def shown_values(measurement: Measurement) -> Iterator[tuple[str, str]]:
    """Yield titles and values for a page; missing values are empty."""
    for name, title in measurement.titles.items():
        value = measurement.values.get(name)
        text = "" if value is None else str(value)
        yield title, f"{value:.4g}" if isinstance(value, float) else text

"""The threshold of known or new in a run's metrics, report and export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext.errors import ConfigError, DataError, UnwritableError, counted
from pml_ext_train.results import Measurement, add_measurement

if TYPE_CHECKING:
    from .calibration import Calibration

NAME = "known_or_new"
_TITLES = {
    "threshold": "Threshold: the greatest distance of a known one (--radius)",
    "false_acceptances_asked_for": "False acceptances that were asked for",
    "false_acceptances_expected": "False acceptances to expect on average, at most",
    "false_acceptances_low": "False acceptances with these classes: from",
    "false_acceptances_high": "to (90 % interval)",
    "known_accepted": "Calibration images, each left out, that get their class",
    "classes": "Enrolled classes",
    "images": "Enrolled images",
}


def measurement_of(calibration: Calibration) -> Measurement:
    """A threshold with its metrics, for another program, without paths."""
    if calibration.nearest == "center":
        place = "center, the mean of the embeddings of its images scaled to length 1"
    else:
        place = "nearest image"
    wanted = "the best accuracy" if calibration.far is None else f"a share of {calibration.far:g} of false acceptances"
    if calibration.folder is None:
        new = f"{counted(calibration.others, 'enrolled image')}, each compared with the other classes"
    else:
        new = f"{counted(calibration.others, 'photograph')} of other individuals"
    text = (
        "A photograph is known if its embedding is at most the threshold from the nearest class, and else it is new. "
        f"The distance is Euclidean, between embeddings of length 1, to the class's {place}. "
        f"The threshold was calibrated for {wanted}. It was chosen on {new}, and on "
        f"{counted(calibration.own, 'enrolled image')}, each left out of its class; to test it on other photographs: "
        "pml-ext identify RUN FOLDER --score. It is calibrated again when the enrolled images change."
    )
    values: dict[str, float | int | str | None] = {
        "threshold": calibration.threshold,
        "distance": "euclidean",
        "nearest": calibration.nearest,
        "false_acceptances_asked_for": calibration.far,
        "false_acceptances_expected": calibration.expected,
        "false_acceptances_low": calibration.interval[0],
        "false_acceptances_high": calibration.interval[1],
        "known_accepted": calibration.true_acceptances,
        "classes": calibration.classes,
        "images": calibration.images,
        "gallery": calibration.gallery,
        "identity": calibration.identity,
    }
    titles = {name: title for name, title in _TITLES.items() if values[name] is not None}
    return Measurement(title="Known or new", text=text, by=calibration.by, titles=titles, values=values)


def record(folder: Path, calibration: Calibration, say: Callable[[str], None]) -> None:
    """Write the threshold into a run's metrics and report; say why if that fails."""
    try:
        add_measurement(folder, NAME, measurement_of(calibration))
    except (ConfigError, DataError, UnwritableError) as error:
        say(f"the threshold is kept with the collection, but could not be added to metrics and report: {error}")

"""``pml-ext identify``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from pml_ext.errors import ConfigError, printable
from pml_ext_train.cli import (
    AsJson,
    ComparedBy,
    OnDevice,
    Progress,
    StoreFolder,
    print_json,
    print_result,
    print_table,
    say,
    stdout,
)
from pml_ext_train.report import percent

from .loading import RunOrImages, searched_run

if TYPE_CHECKING:
    from ..open_set.identify import Identified, Scored
    from ..trained import TrainedRun


def identify(
    run: RunOrImages,
    photographs: Annotated[
        list[Path] | None,
        Argument(metavar="PHOTO", help="Images, or a folder; of a run of vectors, a file of them. None: calibrate."),
    ] = None,
    k: Annotated[int, Option("-k", help="Number of nearest classes.")] = 3,
    far: Annotated[
        str | None,
        Option(
            metavar="RATE|best-accuracy",
            help="Calibrate the threshold: the share of new ones that is taken for known (default: as kept, or 0.05).",
        ),
    ] = None,
    radius: Annotated[float | None, Option(help="Maximum distance of a known one, in place of the threshold.")] = None,
    nearest: Annotated[
        Literal["center", "image"] | None,
        Option(help="Whether a class is as near as its center or its nearest image (default: as kept, or center)."),
    ] = None,
    on: Annotated[
        Path | None, Option(metavar="FOLDER", help="Calibrate on other individuals, a sub-folder each.")
    ] = None,
    score: Annotated[
        bool, Option("--score", help="Measure the answers to a folder with a sub-folder per class.")
    ] = False,
    by: ComparedBy = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Tell which class of the index a photograph shows, or that it is new.

    It is new if the nearest class is farther than a threshold, which is calibrated once, for a wanted rate of false
    acceptances, and kept with the collection. It is calibrated again when the index changes.

    Examples:
        pml-ext identify runs/whales new.jpg
        pml-ext identify runs/whales new --json
    """
    from ..open_set import identify as identification
    from ..query.query import check_query

    check_query(k, radius)
    if radius is not None and (far is not None or on is not None):
        raise ConfigError("--radius sets the threshold, and --far and --on calibrate it; leave out one of them")
    if score and len(photographs or []) != 1:
        raise ConfigError(f"--score needs one folder; type: pml-ext identify {run} FOLDER --score")
    if radius is not None and not photographs:
        raise ConfigError(f"--radius is for photographs; type: pml-ext identify {run} PHOTO --radius {radius:g}")
    with Progress() as bar:
        trained = searched_run(run, device, bar, store, by)
        identifier = identification.Identifier(trained.search_index, trained.loaded, bar.step)
        if on is not None or not photographs:
            calibration = identifier.calibration(far, nearest, on)
        if not photographs:
            print_result(as_json, calibration.model_dump(), str(calibration))
            return
        threshold, to = identifier.threshold(far, radius, nearest)
        if score:
            _print_scored(identifier.scored(identifier.labelled(photographs[0]), threshold, to), as_json)
            return
        answers: list[Identified] = []
        for queries in identifier.each(photographs):
            answers += identifier.identified(queries, k, threshold, to)
    if as_json:
        print_json([answer.as_json() for answer in answers])
        return
    _print_answers(trained, answers)


def _print_answers(trained: TrainedRun, answers: list[Identified]) -> None:
    rows = []
    for answer in answers:
        found = zip(answer.classes, answer.distances, answer.paths, strict=True)
        for rank, (name, distance, path) in enumerate(found):
            known = "new" if answer.name is None else "known"
            first = ["", ""] if rank else [printable(answer.query), known]
            rows.append([*first, printable(name), f"{distance:.4f}", printable(path)])
    noun = "id" if trained.takes_vectors else "image"
    print_table(["query", "", "nearest classes", "distance", f"nearest {noun}"], rows, right=[3])
    new = sum(answer.name is None for answer in answers)
    line = f"{len(answers) - new} known, {new} new: a known one is within {answers[0].threshold:.4g} of a class"
    stdout().print(line, soft_wrap=True)


def _print_scored(scored: Scored, as_json: bool) -> None:
    from ..open_set.open_set import title_of

    rows = [[title_of(name), str(percent(value))] for name, value in scored.metrics.items()]
    line = f"{scored.known} photographs of enrolled classes, {scored.new} of others, within {scored.threshold:.4g}"
    print_result(as_json, dataclasses.asdict(scored), line, columns=["metric", "%"], rows=rows, right=[1])
    if not as_json and not scored.new:
        say("every photograph belongs to an enrolled class, so false acceptances cannot be measured")

"""Runs of a recipe: its variants, several seeds, where they are written, and a table of mean and spread."""

from __future__ import annotations

import contextlib
import os
import shlex
import statistics
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices import choose_device
from ..distributed import from_rank_0, num_processes, process_group, rank
from ..errors import DataError, PmlExtError, StoppedError, one_line, shortened
from ..evaluation.figures import sweep_curve
from ..files import (
    DamagedError,
    read_json,
    remove_left_overs,
    write_atomically,
    write_json,
    write_toml,
    writing,
)
from ..sums import SUMS, check_unchanged
from . import signals
from .lock import LOCK, locked
from .mending import LAST, METRICS, MODEL, RECIPE, REPORT, to_mend
from .plans import Plan, plan, restarted
from .progress import Listener, OnNonfinite
from .recipe import load_recipes, plugins_in
from .run import Run

Metrics = dict[str, Any]


def execute(
    plan: Plan,
    device: str = "auto",
    data: Path | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    on_nonfinite: OnNonfinite = "stop",
) -> Metrics:
    """Does one run.

    Args:
        plan: what to do.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the folder of the data.
        listener: hears how it goes on.
        resume: go on with what the folder holds; a finished run is only read, and its report drawn if it is missing.
        on_nonfinite: ``"stop"``, or ``"skip"`` for iterations to be left out whose loss, embeddings or gradients are
            NaN or infinite.

    Returns:
        What stands in ``metrics.json``.
    """
    metrics, lacking = from_rank_0(_finished(plan.folder) if resume and rank() == 0 else (None, []))
    if metrics is not None and MODEL in lacking:
        metrics = None  # the run goes on from its last checkpoint, and ends once more
    if metrics is not None and not lacking:
        return metrics  # type: ignore[no-any-return]
    with contextlib.ExitStack() as stack:
        existed, word = plan.folder.exists(), ""
        if existed and rank() == 0:
            word = stack.enter_context(locked(plan.folder))
        run = Run(plan.recipe, plan.name, plan.folder, plan.seed, choose_device(device), data, listener, on_nonfinite)
        run.listener.step(f"{plan.name}, seed {plan.seed}, in {plan.folder}")
        if metrics is not None:
            if rank() == 0:
                if RECIPE in lacking:
                    run.listener.warn(f"{plan.folder / RECIPE}: not the file that the run wrote; it is written again")
                    _write_recipe(plan)
                _try_report(run, metrics)
            return metrics  # type: ignore[no-any-return]
        if rank() == 0:
            if not existed:
                with writing(plan.folder):
                    plan.folder.mkdir(parents=True)
                stack.enter_context(locked(plan.folder))
            if word:
                run.listener.step(word)
            if MODEL in lacking:
                run.listener.warn(
                    f"{plan.folder / MODEL} is gone or damaged; it is made again from {plan.folder / LAST}"
                )
            _tidy(plan.folder)
            _write_recipe(plan)
        return run.train(resume)


def _write_recipe(plan: Plan) -> None:
    tables = plan.recipe.as_dict()
    about = {"run": {"recipe": plan.name, "seed": plan.seed, "plugins": plugins_in(tables)}}
    write_toml(plan.folder / RECIPE, tables | about, "run")


def _tidy(folder: Path) -> None:
    """Removes what a killed run has left: temporary files, and checkpoints of which nobody knows the recipe."""
    (folder / SUMS).unlink(missing_ok=True)  # of a run that had ended
    remove_left_overs(folder, (RECIPE, "network.json", METRICS, "neighbors.npz", REPORT, LOCK, SUMS))
    for place in ("checkpoints", "figures"):
        remove_left_overs(folder / place)
    if not (folder / "recipe.toml").exists() and not (folder / "checkpoints" / "last.pt").exists():
        for name in ("before", "best", "within"):
            (folder / "checkpoints" / f"{name}.pt").unlink(missing_ok=True)


def _finished(folder: Path) -> tuple[Metrics | None, list[str]]:
    """The metrics of a finished run, None where there is none, and which of its files are not what they were."""
    finished = folder / METRICS
    return (read_metrics(finished), to_mend(folder)) if finished.exists() else (None, [])


def _try_report(run: Run, metrics: Metrics) -> None:
    """Draws a finished run's report, without which it is finished all the same."""
    try:
        run.draw_report_again(metrics)
    except PmlExtError as error:
        kept = (run.folder / REPORT).exists()
        run.listener.warn(f"{'the report is not drawn again' if kept else 'there is no report'}: {error}")


def draw_report(folder: Path, device: str = "auto", data: Path | None = None, listener: Listener | None = None) -> Path:
    """Draws the report of a finished run again.

    Args:
        folder: the run's folder, with ``recipe.toml``, ``metrics.json`` and its checkpoints.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the folder of the data.
        listener: hears how it goes on.

    Returns:
        The HTML file.

    Raises:
        DataError: no finished run in the folder, or a checkpoint that cannot be read.
    """
    if (folder / "summary.json").is_file():
        raise DataError(f"{folder} holds several runs; wanted the folder of one of them")
    for name in ("recipe.toml", "metrics.json"):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder}: no finished run (no {name} in it); type: pml-ext train RECIPE --out {folder} --resume"
            )
    recipe = next(iter(load_recipes(str(folder / "recipe.toml")).values()))
    metrics = read_metrics(folder / "metrics.json")
    for name in (RECIPE, METRICS):
        check_unchanged(folder, name)
    with locked(folder):
        run = Run(recipe, metrics["recipe"], folder, metrics["seed"], choose_device(device), data, listener)
        run.draw_report_again(metrics)
    return folder / REPORT


def read_metrics(path: Path) -> Metrics:
    """The contents of a ``metrics.json``.

    Raises:
        DataError: the file is damaged.
    """
    try:
        return read_json(path)
    except DamagedError as error:
        raise DataError(
            f"{path}: not the metrics of a run ({shortened(error, 200)}); delete it and train with --resume: they are "
            "measured and written again"
        ) from None


def summarize(results: Sequence[Metrics]) -> dict[str, dict[str, dict[str, dict[str, float | None]]]]:
    """Mean and spread of several runs.

    Args:
        results: what stands in their ``metrics.json``.

    Returns:
        ``{recipe: {"raw" | "before" | "after" | ...: {metric: {"mean": ..., "std": ...}}}}``; the spread is the
        sample standard deviation, None for one run.
    """
    summary: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
    for name in dict.fromkeys(result["recipe"] for result in results):
        mine = [result for result in results if result["recipe"] == name]
        phases = [phase for phase, value in mine[0].items() if isinstance(value, dict) and "recall_at_1" in value]
        summary[name] = {
            phase: {metric: spread([result[phase][metric] for result in mine]) for metric in mine[0][phase]}
            for phase in phases
        }
    return summary


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation, None for one value.

    Args:
        values: one or more.
    """
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def train(
    name: str,
    out: Path | None = None,
    seed: int = 0,
    seeds: int = 1,
    device: str = "auto",
    data: Path | None = None,
    overrides: Iterable[str] = (),
    resume: bool = False,
    listener: Listener | None = None,
    on_nonfinite: OnNonfinite = "stop",
) -> list[Metrics]:
    """Trains a recipe: all its variants, with every seed.

    Args:
        name: a recipe's name or file.
        out: the folder to write; by default ``runs/NAME-SEED-TIME``.
        seed: the first seed.
        seeds: how many seeds.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the folder of the data.
        overrides: ``KEY=VALUE`` pairs.
        resume: go on with the runs in the folder.
        listener: hears how a run goes on.
        on_nonfinite: as of :func:`execute`.

    SIGINT, SIGTERM and SIGHUP end training after the iteration, with a checkpoint; a second one ends it at once.

    Returns:
        What stands in each run's ``metrics.json``, with its ``folder``. For more than one run, ``summary.json`` in
        the common folder has mean and spread.

    Raises:
        FailedRunsError: some of several runs failed; the others were done, and are in the error and the summary. With
            several processes the first run that fails ends them all.
        StoppedError: a signal ended it; the text says what to type to go on.
    """
    resume = resume or restarted()
    with signals.listening():
        plans: list[Plan] = []
        try:
            return _train_all(plans, name, out, seed, seeds, device, data, overrides, resume, listener, on_nonfinite)
        except StoppedError as error:
            again = _to_go_on(plans, name, seed, seeds, device, data, overrides, on_nonfinite)
            raise StoppedError(error.signal, f"{error}; {again}") from None


def _to_go_on(
    plans: Sequence[Plan],
    name: str,
    seed: int,
    seeds: int,
    device: str,
    data: Path | None,
    overrides: Iterable[str],
    on_nonfinite: OnNonfinite,
) -> str:
    """What to type to go on with runs that a signal has ended."""
    if not any(plan.folder.exists() for plan in plans):
        return "nothing was written yet"
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    words = ["pml-ext"] if processes == "1" else ["torchrun", "--nproc-per-node", processes, "-m", "pml_ext"]
    words += ["train", name, "--out", str(plans[0].folder.parent if len(plans) > 1 else plans[0].folder)]
    for option, value, default in (
        ("--seed", seed, 0),
        ("--seeds", seeds, 1),
        ("--device", device, "auto"),
        ("--data", data, None),
        ("--on-nonfinite", on_nonfinite, "stop"),
    ):
        words += [option, str(value)] if value != default else []
    for override in overrides:
        words += ["--set", override]
    return f"go on with: {shlex.join([*words, '--resume'])}"


def _train_all(
    plans: list[Plan],
    name: str,
    out: Path | None,
    seed: int,
    seeds: int,
    device: str,
    data: Path | None,
    overrides: Iterable[str],
    resume: bool,
    listener: Listener | None,
    on_nonfinite: OnNonfinite,
) -> list[Metrics]:
    with process_group(choose_device(device).partition(":")[0]):
        # Only rank 0 looks at the folder and names it; the others must not see what it has written since.
        plans += from_rank_0(plan(name, out, seed, seeds, overrides, resume) if rank() == 0 else None)
        results: list[Metrics] = []
        failures: list[Failure] = []
        for each in plans:
            signals.check("before a run began")
            try:
                results.append(
                    execute(each, device, data, listener, resume, on_nonfinite) | {"folder": str(each.folder)}
                )
            except Exception as error:
                if len(plans) == 1 or num_processes() > 1:  # the others may wait for this one
                    raise
                failures.append(Failure.of(each, error))
                if listener is not None:
                    listener.warn(str(failures[-1]))
        place = plans[0].folder.parent
        if len(plans) > 1 and rank() == 0 and place.exists():  # not if all failed before they wrote anything
            _write_summary(place, results, failures)
        if failures:
            raise FailedRunsError(results, failures, len(plans))
        return results


@dataclass(frozen=True)
class Failure:
    """A run of several that failed.

    Args:
        recipe: the recipe's name, with its variant.
        seed: of the run.
        folder: of the run.
        error: the text of the error.
        where: its traceback.
    """

    recipe: str
    seed: int
    folder: str
    error: str
    where: str

    @classmethod
    def of(cls, plan: Plan, error: Exception) -> Failure:
        """What is kept of an error; the error itself would keep the networks of its run."""
        text = str(error) if isinstance(error, PmlExtError) else one_line(error)
        return cls(plan.name, plan.seed, str(plan.folder), text, "".join(traceback.format_exception(error)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the traceback."""
        return {"recipe": self.recipe, "seed": self.seed, "folder": self.folder, "error": self.error}

    def __str__(self) -> str:
        return f"{self.recipe}, seed {self.seed}, in {self.folder} failed: {self.error}"


class FailedRunsError(PmlExtError):
    """Some runs of several failed.

    Args:
        results: the metrics of the others, as :func:`train` returns them.
        failures: what failed, and why.
        runs: how many there were.
    """

    def __init__(self, results: list[Metrics], failures: list[Failure], runs: int) -> None:
        self.results, self.failures = results, failures
        super().__init__(f"{len(failures)} of {runs} runs failed: {'; '.join(map(str, failures))}")
        for failure in failures:
            self.add_note(failure.where)


def _write_summary(folder: Path, results: list[Metrics], failures: list[Failure]) -> None:
    """Writes ``summary.json``, with ``failures`` where there are some, and ``sweep.png``."""
    summary: dict[str, Any] = dict(summarize(results))
    if failures:
        summary["failures"] = [failure.as_dict() for failure in failures]
    remove_left_overs(folder, ())  # of processes that are gone
    write_json(folder / "summary.json", summary)
    draw_sweep(results, folder / "sweep.png")


def draw_sweep(results: Sequence[Metrics], path: Path) -> None:
    """Draws Recall@1, MAP@R and NMI after training over the values of a sweep, where those are numbers.

    Args:
        results: what stands in the runs' ``metrics.json``; their recipes' names end in ``@VALUE``.
        path: the PNG to write.
    """
    variants = [result["recipe"].partition("@")[2] for result in results]
    try:
        values = [float(variant) for variant in variants]
    except ValueError:
        return
    if len(set(values)) < 2:
        return
    curves: dict[str, dict[float, list[float]]] = {}
    for value, result in zip(values, results, strict=True):
        for metric in ("recall_at_1", "map_at_r", "nmi"):
            curves.setdefault(metric, {}).setdefault(value, []).append(result["after"][metric])
    figure = sweep_curve(curves, results[0]["recipe"].partition("@")[0])
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))

"""Runs of a recipe: its variants, several seeds, where they are written, and a table of mean and spread."""

from __future__ import annotations

import datetime
import json
import statistics
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices import choose_device
from ..distributed import from_rank_0, num_processes, process_group, rank
from ..errors import ConfigError, DataError, PmlExtError, one_line
from ..evaluation.figures import sweep_curve
from ..files import write_atomically, write_json, write_toml
from .progress import Listener
from .recipe import Recipe, load_recipes, plugins_in, read_tables
from .run import Run

Metrics = dict[str, Any]
REPORT = "report.html"


@dataclass(frozen=True)
class Plan:
    """One run to do.

    Args:
        name: the recipe's name, with its variant.
        recipe: what to train.
        seed: of all generators.
        folder: where it is written.
    """

    name: str
    recipe: Recipe
    seed: int
    folder: Path


def plan(name: str, out: Path | None = None, seed: int = 0, seeds: int = 1,
         overrides: Iterable[str] = (), resume: bool = False) -> list[Plan]:  # fmt: skip
    """The runs of a recipe, checked before any begins.

    Args:
        name: a recipe's name or file; see :func:`load_recipes`.
        out: the folder to write; by default ``runs/NAME-SEED-TIME``. More than one run get sub-folders of it.
        seed: the first seed.
        seeds: how many seeds, counted up from the first.
        overrides: ``KEY=VALUE`` pairs.
        resume: whether the folder may exist.

    Raises:
        ConfigError: the recipe is wrong, or the folder exists and is not resumed, or holds another run.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: wanted 1 or more")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: wanted 0 or more")
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to go on with")
    recipes = load_recipes(name, overrides)
    if out is None:
        time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        shown = Path(name).stem if name.endswith(".toml") else name.replace("/", "-")
        out = Path("runs") / f"{shown}-{seed}-{time}"
    if out.exists() and not resume:
        raise ConfigError(f"{out} exists; add --resume to go on with the run in it, or choose another --out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out wants a folder")
    several = len(recipes) * seeds > 1
    if several and (out / "recipe.toml").exists():
        raise ConfigError(f"{out} holds one run; several runs want a folder of their own, choose another --out")
    plans = []
    for full_name, recipe in recipes.items():
        variant = full_name.partition("@")[2].replace("/", "-")
        for number in range(seed, seed + seeds):
            parts = [variant] * (len(recipes) > 1) + [f"seed-{number}"] * (seeds > 1)
            plans.append(Plan(full_name, recipe, number, out.joinpath("-".join(parts)) if several else out))
    for each in plans:
        _check_same(each)
    return plans


def _check_same(plan: Plan) -> None:
    """A folder that is resumed must hold the same recipe and seed."""
    if not plan.folder.exists() or not any(plan.folder.iterdir()):
        return
    saved = plan.folder / "recipe.toml"
    if not saved.is_file():
        raise ConfigError(f"{plan.folder} holds no run (no recipe.toml in it); choose another --out")
    run, tables = tomllib.loads(saved.read_text("utf-8"))["run"], read_tables(str(saved))
    wanted = plan.recipe.as_dict()
    if run["seed"] != plan.seed:
        raise ConfigError(
            f"{plan.folder} holds a run with seed {run['seed']}, not {plan.seed}; type --seed {run['seed']}"
        )
    if (difference := _first_difference(tables, wanted)) is not None:
        key, old, new = difference
        raise ConfigError(f"{saved}: {key} is {old!r} in the run to resume, but {new!r} now; resume it with the same")


def _first_difference(old: Any, new: Any, key: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for part in [*old, *(part for part in new if part not in old)]:
            inner = f"{key}.{part}" if key else part
            if (difference := _first_difference(old.get(part), new.get(part), inner)) is not None:
                return difference
        return None
    return None if old == new else (key or "recipe", old, new)


def execute(plan: Plan, device: str = "auto", data: Path | None = None,
            listener: Listener | None = None, resume: bool = False) -> Metrics:  # fmt: skip
    """Does one run.

    Args:
        plan: what to do.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the folder of the data.
        listener: hears how it goes on.
        resume: go on with what the folder holds; a finished run is only read, and its report drawn if it is missing.

    Returns:
        What stands in ``metrics.json``.
    """
    metrics, has_report = from_rank_0(_finished(plan.folder) if resume and rank() == 0 else (None, False))
    if has_report:
        return metrics  # type: ignore[no-any-return]
    run = Run(plan.recipe, plan.name, plan.folder, plan.seed, choose_device(device), data, listener)
    run.listener.step(f"{plan.name}, seed {plan.seed}, in {plan.folder}")
    if metrics is not None:
        if rank() == 0:
            _try_report(run, metrics)
        return metrics  # type: ignore[no-any-return]
    if rank() == 0:
        plan.folder.mkdir(parents=True, exist_ok=resume)
        tables = plan.recipe.as_dict()
        about = {"run": {"recipe": plan.name, "seed": plan.seed, "plugins": plugins_in(tables)}}
        write_toml(plan.folder / "recipe.toml", tables | about)
    return run.train(resume)


def _finished(folder: Path) -> tuple[Metrics | None, bool]:
    """The metrics of a finished run, None where there is none, and whether it has its report."""
    finished = folder / "metrics.json"
    return (read_metrics(finished), (folder / REPORT).exists()) if finished.exists() else (None, False)


def _try_report(run: Run, metrics: Metrics) -> None:
    """Draws a finished run's report, without which it is finished all the same."""
    try:
        run.draw_report_again(metrics)
    except PmlExtError as error:
        run.listener.warn(f"there is no report: {error}")


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
    run = Run(recipe, metrics["recipe"], folder, metrics["seed"], choose_device(device), data, listener)
    run.draw_report_again(metrics)
    return folder / REPORT


def read_metrics(path: Path) -> Metrics:
    """The contents of a ``metrics.json``.

    Raises:
        DataError: the file is damaged.
    """
    try:
        return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]
    except ValueError as error:
        raise DataError(
            f"{path}: not the metrics of a run ({one_line(error)}); delete it and train with --resume: they are "
            "measured and written again"
        ) from None


def summarize(results: Sequence[Metrics]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean and spread of several runs.

    Args:
        results: what stands in their ``metrics.json``.

    Returns:
        ``{recipe: {"raw" | "before" | "after" | ...: {metric: {"mean": ..., "std": ...}}}}``; the spread is the
        sample standard deviation, 0 for one run.
    """
    summary: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name in dict.fromkeys(result["recipe"] for result in results):
        mine = [result for result in results if result["recipe"] == name]
        phases = [phase for phase, value in mine[0].items() if isinstance(value, dict) and "recall_at_1" in value]
        summary[name] = {
            phase: {metric: _spread([result[phase][metric] for result in mine]) for metric in mine[0][phase]}
            for phase in phases
        }
    return summary


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def train(name: str, out: Path | None = None, seed: int = 0, seeds: int = 1, device: str = "auto",
          data: Path | None = None, overrides: Iterable[str] = (), resume: bool = False,
          listener: Listener | None = None) -> list[Metrics]:  # fmt: skip
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

    Returns:
        What stands in each run's ``metrics.json``, with its ``folder``. For more than one run, ``summary.json`` in
        the common folder has mean and spread.

    Raises:
        FailedRunsError: some of several runs failed; the others were done, and are in the error and the summary. With
            several processes the first run that fails ends them all.
    """
    with process_group(choose_device(device).partition(":")[0]):
        # Only rank 0 looks at the folder and names it; the others must not see what it has written since.
        plans = from_rank_0(plan(name, out, seed, seeds, overrides, resume) if rank() == 0 else None)
        results: list[Metrics] = []
        failures: list[Failure] = []
        for each in plans:
            try:
                results.append(execute(each, device, data, listener, resume) | {"folder": str(each.folder)})
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

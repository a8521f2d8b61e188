"""Start and resume runs: recipes and seeds, folders, devices, and the summary of several runs."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from ..distributed import from_rank_0, num_processes, process_group, rank, wait_for_all_ranks
from ..distributed.devices import choose_device
from ..errors import ConfigError, DataError, PmlExtError, StoppedError, first_of, one_line, printable, shortened
from ..files import DamagedError, check_writable, checksums, final_path, locked_folder, read_json, read_toml, write_json
from ..files.checksums import SUMS
from ..recipe import Recipe, flat, load_recipe, load_recipes, naming_settings, plugins_in
from . import signals
from .folder import (
    CHOICE,
    FILES,
    METRICS,
    RECIPE,
    REPORT,
    TRIALS,
    WRITTEN,
    check_unchanged,
    how_to_redo,
    no_finished_run,
)
from .listener import Listener
from .loop import train_run
from .results import write_again
from .run import OnNonfinite, Run
from .trackers import phases_of
from .verdict import verdict

Metrics = dict[str, Any]
LOCK = ".lock"
QUICK = ("evaluation.baselines=false", "evaluation.figures=few", "evaluation.training_images=0")  # only the test
MODEL = "checkpoints/model.pt"
LAST = "checkpoints/last.pt"
_FAILURE = "{recipe}, seed {seed}, in {folder} failed: {error}"


@dataclass(frozen=True)
class Plan:
    """A planned run: the recipe with its name and variant, the seed of all generators, and the folder to write."""

    name: str
    recipe: Recipe
    seed: int
    folder: Path
    trials: int = 0  # of tuning, by which values of the recipe were chosen
    epochs_before: int | None = None  # epochs of the run that the folder holds
    overrides: tuple[str, ...] = ()  # the options KEY=VALUE, for errors
    file: str | None = None  # of the recipe, where the name is that of the run which wrote it


def plan(
    name: str,
    out: Path | None = None,
    seed: int = 0,
    seeds: int = 1,
    overrides: Iterable[str] = (),
    resume: bool = False,
) -> list[Plan]:
    """Return the runs of a recipe, checked before any begins; arguments as of :func:`train`."""
    _check_resumable(out, resume)
    overrides = tuple(overrides)
    recipes = load_recipes(name, overrides, begins_first=True)
    if out is None:
        out = default_folder(name, seed)
    _check_free(out, resume)
    recorded = _recorded_name(name, out)
    file = name if recorded else None
    plans = []
    for full_name, recipe in recipes.items():
        for number in range(seed, seed + seeds):
            folder = out / _folder_name(full_name, number, several_recipes=len(recipes) > 1, several_seeds=seeds > 1)
            before = _epochs_before(folder, recipe, number)
            shown = recorded or full_name
            plans.append(Plan(shown, recipe, number, folder, overrides=overrides, epochs_before=before, file=file))
    return plans


def check_folder(out: Path | None, resume: bool) -> None:
    """Refuse a folder in which no run can begin, or go on; ConfigError as of :func:`plan`, before long trials."""
    _check_resumable(out, resume)
    if out is not None:
        _check_free(out, resume)
        check_writable("--out", out)
        if out.is_dir() and not any(out.glob("seed-*")):
            _check_only_files_of_a_run(out)


def _check_resumable(out: Path | None, resume: bool) -> None:
    if out is None and (resume or int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0):
        raise ConfigError("--resume and torchrun --max-restarts need --out, the folder of the run to go on with")
    if resume and out is not None and not out.exists() and not restarted():
        raise ConfigError(f"{out}: there is no run to resume; correct --out, or leave out --resume to begin one")


def _check_free(out: Path, resume: bool) -> None:
    if out.exists() and not (resume and out.is_dir()):
        raise ConfigError(f"{out} exists; add --resume to go on with the run in it, or choose another --out")


def _recorded_name(name: str, out: Path) -> str | None:
    """Return the name of the recipe of a run in a folder, or of one of its runs, whose own file was named."""
    file = Path(name)
    if file.name != RECIPE or out not in (file.parent, file.parent.parent):
        return None
    recorded: str | None = tables_of_run(file.parent)["run"].get("recipe")
    return recorded


def tables_of_run(folder: Path) -> dict[str, Any]:
    """Return the recipe that a run has written, with ``[run]``; DataError for a damaged one."""
    _check_against_sums(folder, RECIPE)
    try:
        return read_toml(folder / RECIPE, "run")
    except DamagedError as error:
        text = f"{folder / RECIPE}: not the recipe of a run ({shortened(error, 200)})"
        raise DataError(f"{text}; {how_to_redo(folder, RECIPE)}") from None


def default_folder(name: str, seed: int) -> Path:
    """Return the folder of a run that begins now, ``runs/NAME-SEED-TIME``."""
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    if name.endswith(".toml"):
        shown = Path(name).stem
    else:
        shown = name.replace("/", "-")
    return Path("runs") / f"{shown}-{seed}-{time}"


def _folder_name(full_name: str, seed: int, several_recipes: bool, several_seeds: bool) -> str:
    """Return the name of a run's folder among those of several runs; "" for a single run."""
    parts = []
    if several_recipes:
        variant = printable(full_name.partition("@")[2])
        parts.append(re.sub(r"[/\\]|^\.+$", "-", variant))
    if several_seeds:
        parts.append(f"seed-{seed}")
    return "-".join(parts)


def restarted() -> bool:
    """Return whether torchrun has started this process again, after one that failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _epochs_before(folder: Path, recipe: Recipe, seed: int) -> int | None:
    """Return the epochs of the run in a folder, if any; refuse a run of another recipe or seed, or other files."""
    if not folder.exists():
        return None
    try:
        _check_against_sums(folder, RECIPE)
        tables = read_toml(folder / RECIPE, "run")
    except (FileNotFoundError, DamagedError, DataError):  # checkpoints refuse another recipe or seed as well
        _check_only_files_of_a_run(folder)
        return None
    before = tables.pop("run").get("seed")
    if before != seed:
        raise ConfigError(f"{folder} holds a run with seed {before}, not {seed}; type --seed {before}")
    old = flat(tables)
    new = flat(recipe.as_dict())
    epochs: int = old["schedule.epochs"]
    extends = recipe.schedule.epochs > epochs and recipe.schedule.name in ("constant", "cosine")
    for key in [*old, *new]:
        may_change = key.startswith("track") or (key == "schedule.epochs" and extends)
        if old.get(key) != new.get(key) and not may_change:
            there = f"{key} is {old.get(key)!r} in the run to resume, but {new.get(key)!r} now"
            raise ConfigError(f"{folder / RECIPE}: {there}; resume it with the same")
    return epochs


def _check_only_files_of_a_run(folder: Path) -> None:
    """Raise ConfigError for a folder without a run that has other files than a run would write."""
    if (folder / LAST).exists() or (folder / METRICS).exists():
        return
    known = {*FILES, CHOICE, TRIALS, LOCK, SUMS}
    names = set()
    for path in folder.iterdir():
        final = final_path(path)  # of a temporary file
        names.add(path.name if final is None else final.name)
    if names - known:
        raise ConfigError(f"{folder} holds no run (no {RECIPE} in it); choose another --out")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock a run's folder, and finish or remove files of a killed process; ConfigError if it is locked."""
    text = f"{folder} is being written by another run; wait for it or stop it, or choose another --out"
    with locked_folder(folder, ConfigError(text)):
        checksums.recover(folder, WRITTEN)
        yield


def execute(
    plan: Plan,
    device: str = "auto",
    data: Path | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    on_nonfinite: OnNonfinite = "stop",
) -> Metrics:
    """Do one run and return the contents of ``metrics.json``; arguments as of :func:`train`."""
    folder = plan.folder
    found: tuple[Metrics | None, list[str]] = (None, [])
    if resume and rank() == 0 and (folder / METRICS).exists():
        found = _finished(folder)
    metrics, damaged = from_rank_0(found)
    is_longer = plan.epochs_before is not None and plan.epochs_before < plan.recipe.schedule.epochs
    if metrics is not None and not damaged and not is_longer:
        return metrics  # type: ignore[no-any-return]

    with naming_settings(plan.file or plan.name, plan.overrides):
        run = Run(plan.recipe, plan.name, folder, plan.seed, device, data, listener, on_nonfinite)
    run.listener.step(_first_line(plan, is_longer))
    # A finished run whose network is there lacks only files that follow from it; any other run is trained on.
    only_files = metrics is not None and MODEL not in damaged and not is_longer
    with locked(folder) if rank() == 0 else contextlib.nullcontext():
        if rank() == 0:
            if MODEL in damaged:
                run.listener.warn(f"{folder / MODEL} is gone or damaged; it is made again from {folder / LAST}")
            if is_longer:
                (folder / METRICS).unlink(missing_ok=True)
            if not only_files or RECIPE in damaged:
                _write_recipe(plan)
            if metrics is not None and only_files:
                write_again(run, metrics, damaged)
        wait_for_all_ranks()  # until rank 0 has written the files, which the other ranks read now
        if metrics is not None and only_files:
            return metrics  # type: ignore[no-any-return]
        return train_run(run, resume)


def _first_line(plan: Plan, is_longer: bool) -> str:
    """Return the line with which a run begins."""
    text = f"{plan.name}, seed {plan.seed}, in {plan.folder}"
    if not is_longer:
        return text
    schedule = plan.recipe.schedule
    if schedule.name == "cosine":
        falls = ", the learning rate falls along the longer cosine"
    else:
        falls = ""
    text += f": {schedule.epochs} epochs in place of {plan.epochs_before}{falls}"
    return f"{text}; metrics and report are made again"


def _write_recipe(plan: Plan) -> None:
    """Write the recipe of a run, with its name, seed and plugins."""
    tables = plan.recipe.as_dict()
    about: dict[str, Any] = {"recipe": plan.name, "seed": plan.seed, "plugins": plugins_in(tables)}
    if plan.trials:
        about["trials"] = plan.trials
    tables["run"] = about
    text = tomli_w.dumps(tables)
    checksums.replace_file(plan.folder, RECIPE, lambda path: path.write_text(text, "utf-8"))


def _check_against_sums(folder: Path, name: str) -> None:
    """Raise DataError if a file differs from its checksum; damaged checksums are written again with the report."""
    if checksums.read_sums(folder):
        check_unchanged(folder, name)


def is_finished(folder: Path) -> bool:
    """Return whether a folder has a finished run with all of its files; the checksum of the report is written last."""
    return (folder / METRICS).exists() and REPORT in checksums.read_sums(folder)


def _finished(folder: Path) -> tuple[Metrics, list[str]]:
    """Return the metrics of a finished run, and the names of its missing and damaged files."""
    _check_against_sums(folder, METRICS)
    metrics = read_metrics(folder / METRICS)
    damaged = set()
    for name in checksums.missing_files(folder):
        if not name.startswith("checkpoints/"):
            damaged.add(name)
    for name in (SUMS, MODEL):
        if not (folder / name).exists():
            damaged.add(name)
    damaged.update(checksums.changed_files(folder))
    if REPORT not in checksums.read_sums(folder):
        damaged.add(REPORT)
    if MODEL in damaged and not (folder / LAST).exists():
        raise DataError(
            f"{folder / MODEL} is gone or damaged, and {folder / LAST}, from which it could be made again, is gone; "
            f"delete {folder / METRICS} and train with --resume: training begins again with the first epoch"
        )
    return metrics, sorted(damaged)


def draw_report(folder: Path, device: str = "auto", data: Path | None = None, listener: Listener | None = None) -> Path:
    """Regenerate the report of a finished run, and its damaged or missing derived files."""
    for name in (RECIPE, METRICS):
        if not (folder / name).is_file():
            raise no_finished_run(folder, name)
    tables_of_run(folder)
    recipe = load_recipe(str(folder / RECIPE))
    metrics, damaged = _finished(folder)
    with locked(folder):
        run = Run(recipe, metrics["recipe"], folder, metrics["seed"], device, data, listener)
        write_again(run, metrics, damaged)
    return folder / REPORT


def read_metrics(path: Path) -> Metrics:
    """Read a ``metrics.json``; raise DataError for a damaged one."""
    try:
        metrics = read_json(path)
        missing = [name for name in ("recipe", "seed", "after") if name not in metrics]
        if missing:
            raise DamagedError(f"no {first_of(missing, 3)} in it")
        return metrics  # type: ignore[no-any-return]
    except DamagedError as error:
        text = f"{path}: not the metrics of a run ({shortened(error, 200)})"
        raise DataError(f"{text}; {how_to_redo(path.parent, METRICS)}") from None


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
    """Train a recipe, all its variants, with every seed. A signal ends it after the iteration, with a checkpoint.

    Args:
        name: a recipe's name or file.
        out: the folder to write; by default ``runs/NAME-SEED-TIME``. More than one run get sub-folders of it.
        seed: the first of the seeds.
        seeds: how many there are, counted up.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the folder of the data.
        overrides: ``KEY=VALUE`` pairs.
        resume: go on with the runs in the folder.
        listener: hears how a run goes on.
        on_nonfinite: as of :class:`Run`.

    Returns:
        The contents of each run's ``metrics.json``, with its ``folder``, and as ``verdict`` sentences if the network is
        behind the untrained one or behind its own features, or was fine-tuned. Of several runs, ``summary.json`` in
        the common folder has mean and spread.

    Raises:
        FailedRunsError: some of several runs failed, and the others are done; with several processes, the first.
        StoppedError: a signal ended it; the text says what to type to go on.
    """
    resume = resume or restarted()
    runs = _Results(listener)

    def run_all(plans: Sequence[Plan]) -> None:
        for each in plans:
            signals.check("before a run began")
            try:
                runs.add(each, execute(each, device, data, listener, resume, on_nonfinite))
            except Exception as error:
                if len(plans) == 1 or num_processes() > 1:  # other ranks may wait for this one
                    raise
                runs.add_failure(each, error)
        place = _common_folder(plans)
        if len(plans) > 1 and rank() == 0 and place.exists():  # does not exist if all failed before writing
            runs.write_summary(place)

    plans: list[Plan] = []
    backend = choose_device(device).partition(":")[0]
    with signals.listening(), _saying_how_to_continue(plans), process_group(backend):
        # Only rank 0 looks at the folder and names it; the others must not see what it has written since.
        planned = None
        if rank() == 0:
            planned = plan(name, out, seed, seeds, overrides, resume)
        plans += from_rank_0(planned)
        run_all(plans)
    if runs.failures:
        raise FailedRunsError(runs.results, runs.failures)
    return runs.results


def _common_folder(plans: Sequence[Plan]) -> Path:
    """Return the folder of the only run, or that of several."""
    if len(plans) == 1:
        return plans[0].folder
    return plans[0].folder.parent


@contextlib.contextmanager
def _saying_how_to_continue(plans: Sequence[Plan]) -> Iterator[None]:
    """Add to the error of a signal what to type to continue, if something was written."""
    try:
        yield
    except StoppedError as error:
        if not any(each.folder.exists() for each in plans):
            raise StoppedError(error.signal, f"{error}; nothing was written yet") from None
        again = f"the same command with --out {shlex.quote(str(_common_folder(plans)))} --resume"
        raise StoppedError(error.signal, f"{error}; go on with {again}") from None


class _Results:
    """The results of several runs, and the errors of those that failed."""

    def __init__(self, listener: Listener | None) -> None:
        self.results: list[Metrics] = []
        self.failures: list[dict[str, Any]] = []
        self._listener = listener

    def add(self, plan: Plan, metrics: Metrics) -> None:
        """Add the metrics of a run, with its folder, and sentences on what training has brought."""
        result = metrics | {"folder": str(plan.folder)}
        text = verdict(plan.recipe, metrics, plan.folder)
        if text:
            result["verdict"] = text
        self.results.append(result)

    def add_failure(self, plan: Plan, error: Exception) -> None:
        """Add the text of an error; the error itself would keep the networks of its run in memory."""
        if isinstance(error, PmlExtError):
            text = str(error)
        else:
            text = one_line(error)
        failure = {"recipe": plan.name, "seed": plan.seed, "folder": str(plan.folder), "error": text}
        self.failures.append(failure)
        if self._listener is not None:
            self._listener.warn(_FAILURE.format(**failure))

    def write_summary(self, folder: Path) -> None:
        """Write ``summary.json``: mean and spread of the runs, and the failures."""
        checksums.recover(folder, ["summary.json"])
        summary: Metrics = {**summarize(self.results), "failures": self.failures}
        write_json(folder / "summary.json", {key: value for key, value in summary.items() if value})


class FailedRunsError(PmlExtError):
    """Some runs of several failed; ``failures`` have each one's ``recipe``, ``seed``, ``folder`` and ``error``."""

    def __init__(self, results: list[Metrics], failures: list[dict[str, Any]]) -> None:
        self.results = results
        self.failures = failures
        texts = "; ".join(_FAILURE.format(**failure) for failure in failures)
        super().__init__(f"{len(failures)} of {len(results) + len(failures)} runs failed: {texts}")


def summarize(results: Sequence[Metrics]) -> Metrics:
    """Return ``{recipe: {phase: {metric: {"mean": ..., "std": ...}}}}``, see :func:`spread`, of several runs."""
    summary: Metrics = {}
    by_recipe: dict[str, list[Metrics]] = {}
    for result in results:
        by_recipe.setdefault(result["recipe"], []).append(result)
    for name, results_of_recipe in by_recipe.items():
        summary[name] = {}
        for phase, metrics in phases_of(results_of_recipe[0]).items():
            spreads = {}
            for metric in metrics:
                if all(metric in result.get(phase, {}) for result in results_of_recipe):  # else it failed in a run
                    spreads[metric] = spread([result[phase][metric] for result in results_of_recipe])
            summary[name][phase] = spreads
    return summary


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample standard deviation of one or more values; None for the deviation of one."""
    std = None
    if len(values) > 1:
        std = statistics.stdev(values)
    return {"mean": statistics.fmean(values), "std": std}

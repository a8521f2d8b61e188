"""Start and resume runs: recipes, seeds, folders, devices, and the summary."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from pml_ext.distributed import from_rank_0, num_processes, process_group, rank, wait_for_all_ranks
from pml_ext.distributed.devices import choose_device
from pml_ext.errors import ConfigError, PmlExtError, StoppedError, one_line

from ..data import DataSplits
from ..files import checksums, locked_folder, write_json
from ..recipe import Override, Overrides, Recipe, load_recipe, naming_settings, plugins_in
from ..records import (
    LAST,
    METRICS,
    MODEL,
    RECIPE,
    REPORT,
    WRITTEN,
    no_finished_run,
    read_finished,
    summarize,
    tables_of_run,
)
from ..results.finish import finish, write_again
from ..results.verdict import is_trained, verdict
from ..training import Listener, OnNonfinite, Run, signals, train_run
from .plan import Plan, plan, restarted

Metrics = dict[str, Any]
QUICK = (  # only the test
    Override("evaluation.baselines", False, "--quick"),
    Override("evaluation.figures", "few", "--quick"),
    Override("evaluation.training_images", 0, "--quick"),
)
_FAILURE = "{recipe}, seed {seed}, in {folder} failed: {error}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run's folder and recover files of a killed process; ConfigError if it is locked."""
    text = f"{folder} is being written by another run; wait for it, or choose another --out"
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
    splits: DataSplits | None = None,
) -> Metrics:
    """Do one run and return ``metrics.json``; arguments as for :func:`train`."""
    folder = plan.folder
    is_finished = resume and rank() == 0 and (folder / METRICS).exists()
    metrics, damaged = from_rank_0(read_finished(folder) if is_finished else (None, []))
    is_longer = plan.epochs_before is not None and plan.epochs_before < plan.recipe.schedule.epochs
    if is_longer and metrics is not None and not is_trained(metrics):
        is_longer = False
        if listener is not None:
            listener.step(f"{plan.name} in {folder}: this run trains nothing, so more epochs change nothing")
    if metrics is not None and not damaged and not is_longer:
        return metrics  # type: ignore[no-any-return]

    with naming_settings(plan.file or plan.name, plan.overrides):
        run = Run(plan.recipe, plan.name, folder, plan.seed, device, data, listener, on_nonfinite, splits)
    run.listener.step(_first_line(plan, is_longer))
    # A finished run that has its network lacks only files derived from it; any other run continues training.
    only_files = metrics is not None and MODEL not in damaged and not is_longer
    with locked(folder) if rank() == 0 else contextlib.nullcontext():
        if rank() == 0:
            if MODEL in damaged:
                run.listener.warn(f"{folder / MODEL} is missing or damaged; it is restored from {folder / LAST}")
            if is_longer:
                (folder / METRICS).unlink(missing_ok=True)
            if not only_files or RECIPE in damaged:
                _write_recipe(plan)
            if metrics is not None and only_files:
                write_again(run, metrics, damaged)
        wait_for_all_ranks()  # until rank 0 has written the files, which the other ranks read now
        if metrics is not None and only_files:
            return metrics  # type: ignore[no-any-return]
        return train_run(run, finish, resume)


def _first_line(plan: Plan, is_longer: bool) -> str:
    text = f"{plan.name}, seed {plan.seed}, in {plan.folder}"
    if not is_longer:
        return text
    schedule = plan.recipe.schedule
    falls = ", with a longer cosine schedule" if schedule.name == "cosine" else ""
    return (
        f"{text}: {schedule.epochs} epochs instead of {plan.epochs_before}{falls}; metrics and report are written again"
    )


def _write_recipe(plan: Plan) -> None:
    tables = plan.recipe.as_dict()
    about: dict[str, Any] = {"recipe": plan.name, "seed": plan.seed, "plugins": plugins_in(tables)}
    if plan.trials:
        about["trials"] = plan.trials
    tables["run"] = about
    text = tomli_w.dumps(tables)
    checksums.replace_file(plan.folder, RECIPE, lambda path: path.write_text(text, "utf-8"))


def draw_report(folder: Path, device: str = "auto", data: Path | None = None, listener: Listener | None = None) -> Path:
    """Write a finished run's report, and damaged or missing derived files, again."""
    for name in (RECIPE, METRICS):
        if not (folder / name).is_file():
            raise no_finished_run(folder, name)
    tables_of_run(folder)
    recipe = load_recipe(str(folder / RECIPE))
    metrics, damaged = read_finished(folder)
    with locked(folder):
        run = Run(recipe, metrics["recipe"], folder, metrics["seed"], device, data, listener)
        write_again(run, metrics, damaged)
    return folder / REPORT


def train(
    name: str,
    out: Path | None = None,
    seed: int = 0,
    seeds: int = 1,
    device: str = "auto",
    data: Path | None = None,
    overrides: Overrides = (),
    resume: bool = False,
    listener: Listener | None = None,
    on_nonfinite: OnNonfinite = "stop",
    splits: DataSplits | None = None,
) -> list[Metrics]:
    """Train a recipe, all its variants, with every seed.

    Args:
        name: a recipe's name or file.
        out: the folder, by default ``runs/NAME-SEED-TIME``; several runs get sub-folders.
        seed: the first seed.
        seeds: number of seeds, counting up.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        data: the data folder.
        overrides: values by dotted key, ``{"loss.margin": 0.1}``.
        resume: continue the runs in ``out``.
        listener: observer of the runs.
        on_nonfinite: as for :class:`Run`.
        splits: used instead of the recipe's data set.

    Returns:
        Each run's ``metrics.json`` with its ``folder`` and ``verdict``.

    Raises:
        FailedRunsError: some of several runs failed; with several processes, the first failure ends all.
        StoppedError: a signal ended it; the text has the command to resume.
    """
    resume = resume or restarted()
    results: list[Metrics] = []
    failures: list[dict[str, Any]] = []

    plans: list[Plan] = []
    backend = choose_device(device).partition(":")[0]
    with signals.listening(), _saying_how_to_continue(plans), process_group(backend):
        # Only rank 0 examines and names the folder; the others must not see what it writes later.
        planned = plan(name, out, seed, seeds, overrides, resume) if rank() == 0 else None
        plans += from_rank_0(planned)
        for each in plans:
            signals.check("before a run began")
            try:
                metrics = execute(each, device, data, listener, resume, on_nonfinite, splits)
                results.append(_with_verdict(each, metrics))
            except Exception as error:
                if len(plans) == 1 or num_processes() > 1:  # other ranks may wait for this one
                    raise
                failures.append(_failure(each, error))
                if listener is not None:
                    listener.warn(_FAILURE.format(**failures[-1]))
        place = _common_folder(plans)
        if len(plans) > 1 and rank() == 0 and place.exists():  # does not exist if all failed before writing
            checksums.recover(place, ["summary.json"])
            summary = {**summarize(results), "failures": failures}
            write_json(place / "summary.json", {key: value for key, value in summary.items() if value})
    if failures:
        raise FailedRunsError(results, failures)
    return results


def _common_folder(plans: Sequence[Plan]) -> Path:
    return plans[0].folder if len(plans) == 1 else plans[0].folder.parent


@contextlib.contextmanager
def _saying_how_to_continue(plans: Sequence[Plan]) -> Iterator[None]:
    try:
        yield
    except StoppedError as error:
        if not any(each.folder.exists() for each in plans):
            raise StoppedError(error.signal, f"{error}; nothing was written yet") from None
        raise StoppedError(
            error.signal,
            f"{error}; resume with the same command and --out {shlex.quote(str(_common_folder(plans)))} --resume",
        ) from None


def _with_verdict(plan: Plan, metrics: Metrics) -> Metrics:
    text = verdict(plan.recipe, metrics, plan.folder)
    return metrics | {"folder": str(plan.folder)} | ({"verdict": text} if text else {})


def _failure(plan: Plan, error: Exception) -> dict[str, Any]:
    """The record of a failed run: only text, so its networks are freed."""
    text = str(error) if isinstance(error, PmlExtError) else one_line(error)
    return {"recipe": plan.name, "seed": plan.seed, "folder": str(plan.folder), "error": text}


def train_and_validate(
    recipe: Recipe,
    name: str,
    folder: Path,
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener,
    report: Callable[[int, float], None],
) -> float:
    """Train or resume a recipe; return its best ``evaluation.select`` on validation classes.

    ``report`` receives the epoch and the best value after each epoch; its errors end the run.
    """
    run = Run(recipe, name, folder, seed, device, data, listener)
    with locked(folder):
        result = train_run(
            run, resume=True, after_validation=report, finish=lambda run, _: {"value": run.history.best["value"]}
        )
    value: float = result["value"]
    return value


class FailedRunsError(PmlExtError):
    """Some runs failed; ``failures`` have ``recipe``, ``seed``, ``folder`` and ``error``."""

    def __init__(self, results: list[Metrics], failures: list[dict[str, Any]]) -> None:
        self.results = results
        self.failures = failures
        texts = "; ".join(_FAILURE.format(**failure) for failure in failures)
        super().__init__(f"{len(failures)} of {len(results) + len(failures)} runs failed: {texts}")

"""``pml-ext compare`` and ``probe``."""

from __future__ import annotations

import functools
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from pml_ext.tool import (
    AsJson,
    ConfigError,
    DataFolder,
    OnDevice,
    Overrides,
    Progress,
    RayAddress,
    mean_and_std,
    print_json,
    print_result,
    print_table,
    say,
    stdout,
)

if TYPE_CHECKING:
    from .executors import Job
    from .tuning import Study

_METRICS = ["recall_at_1", "map_at_r", "nmi"]


def compare(
    runs: Annotated[
        list[str] | None, Argument(metavar="RECIPE|FOLDER...", help="Recipes to run, and folders of finished runs.")
    ] = None,
    metric: Annotated[list[str] | None, Option(help="Repeatable (default recall_at_1, map_at_r, nmi).")] = None,
    phase: Annotated[str, Option(help="Also before, training, learned_metric, shortlist, raw, frozen, pca.")] = "after",
    out: Annotated[Path | None, Option("--out", "-o", help="The folder for runs and comparison, old or new.")] = None,
    baseline: Annotated[str | None, Option(help="The row that others are compared with (default the first).")] = None,
    table: Annotated[
        str | None, Option(help="Add a paper's table, cbml/7: on small data, or its own with --data.")
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each recipe.")] = 1,
    folds: Annotated[int, Option(min=0, help="Folds of the training classes that choose the epoch in turn.")] = 0,
    jobs: Annotated[int, Option(min=1, help="Number of simultaneous runs.")] = 1,
    on: Annotated[Literal["here", "ray", "slurm"], Option(help="Where runs are executed.")] = "here",
    ray_address: RayAddress = None,
    data: DataFolder = None,
    device: OnDevice = "auto",
    overrides: Overrides = None,
    tune: Annotated[int, Option(min=0, metavar="TRIALS", help="Tune each recipe in its [tune] ranges first.")] = 0,
    save_recipe: Annotated[bool, Option("--save-recipe", help="Write the tuned recipes to --out, as TOML.")] = False,
    latex: Annotated[bool, Option("--latex", help="Also write comparison.tex.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare recipes or runs, with significance tests.

    Trains the recipes' runs that --out does not have yet; repeat an interrupted command to continue. Runs of a recipe
    with equal settings form a row. Prints means and differences from a baseline, paired by seed. p is that of the
    two-sided paired t-test, uncorrected: one in twenty equal rows has p < 0.05. The sentences use p-values corrected by
    Holm's procedure.
    """
    from .comparing import Group, compare, groups_below

    folders = [Path(name) for name in runs or () if Path(name).is_dir()]
    recipes = [name for name in runs or () if not Path(name).is_dir()]
    if table is not None:
        from .running import recipes_of_table

        recipes += recipes_of_table(table, data is not None)
    if not recipes and not folders:
        raise ConfigError("wanted recipes or folders of runs; type: pml-ext compare RECIPE... --seeds 5 --out FOLDER")
    if folds == 1:
        raise ConfigError("--folds 1: wanted 2 or more, or 0 for the recipe's own split")
    if not recipes and (tune or folds or jobs > 1 or seeds > 1):
        raise ConfigError("--seeds, --folds, --jobs and --tune go with recipes to run; found folders alone")
    if out is None and (recipes or latex):
        what = "--latex writes to" if latex else f"no folder {recipes[0]}; the runs of a recipe want"
        raise ConfigError(f"{what} --out FOLDER")
    if save_recipe and not tune:
        raise ConfigError("--save-recipe goes with --tune TRIALS")
    if ray_address is not None and on != "ray":
        raise ConfigError("--ray-address goes with --on ray")
    studies: list[Study] = []
    if out is not None and recipes:
        from .executors import make_executor
        from .running import check_reported, plans_of, rows_of

        more = list(overrides or ())
        if not folders:  # their runs may have other metrics
            check_reported(recipes, more, phase, metric or _METRICS, baseline)
        if tune:
            from .tuning import studies_of, trial_jobs, tuned

            studies = [study for name in recipes for study in studies_of(name, out, tune, folds, data, more)]
        with closing(make_executor(jobs, on, out, ray_address)) as executor, AllRuns() as bar:
            chosen, failed = [(name, list[str]()) for name in recipes], list[Group]()
            if studies:
                trials = trial_jobs(studies, device, data)
                bar.begin("trials", len(trials))
                chosen, failed = tuned(studies, trials, executor, bar.on_progress)
            plans = [
                plan
                for name, values in chosen
                for plan in plans_of(name, out, seeds, folds, data, [*more, *values], tune)
            ]
            begin = functools.partial(bar.begin, "runs")
            groups = [*rows_of(plans, folders, executor, bar.on_progress, device, data, begin), *failed]
    else:
        groups = groups_below(folders)
    result = compare(groups, metric or _METRICS, phase, baseline)
    if studies:
        result["tuning"] = [study.about() for study in studies]
    page = None
    if out is not None:
        from .page import write_comparison

        say("drawing the comparison")
        page = write_comparison(out, groups, result, latex, device, data)
        for study in studies if save_recipe else ():
            if study.best():
                say(f"tuned recipe: {study.save_recipe(out)}")
    if as_json:
        print_json(result)
    else:
        _print(result, page)
    if any(row["errors"] for row in result["recipes"]):
        raise Exit(1)


class AllRuns(Progress):
    """Progress over several runs: a bar with the remaining time, and a line per run."""

    def begin(self, what: str, count: int) -> None:
        """Reset the bar for a number of jobs, ``"runs"`` or ``"trials"``."""
        self._what, self._count, self._shares = what, count, dict[int, float]()
        self._bar.reset(self._task, total=count, visible=False)

    def on_progress(self, job: Job, said: float | str) -> None:
        """Draw the fraction of a run that is done, or write a message."""
        if isinstance(said, str):
            self.step(said)
            return
        self._shares[id(job)] = said
        if said == 1.0:
            ended = sum(share == 1.0 for share in self._shares.values())
            self.step(f"{job.name} has ended: {ended} of {self._count} {self._what}")
        completed = sum(self._shares.values())
        self._bar.update(self._task, description=self._what, completed=completed, visible=True)


def _print(result: dict[str, Any], page: Path | None) -> None:
    from pml_ext.tool import title_of

    from .page import remarks

    metrics, rows = result["metrics"], result["recipes"]
    wide = any(row["trials"] for row in rows)
    columns = [f"{result['phase']}, %, mean ± std", "seeds", *map(title_of, metrics)]
    columns += ["trials", "seconds", "selection"] * wide
    cells = [
        [
            row["recipe"],
            str(len(row["seeds"])),
            *(mean_and_std(row[name]) if row[name]["values"] else "" for name in metrics),
            *([str(row["trials"]), f"{row['seconds'] or 0:.1f}", row["selection"]] * wide),
        ]
        for row in rows
    ]
    print_table(columns, cells, right=range(1, len(columns) - wide))
    if result["differences"]:
        columns = [f"difference from {result['differences_from']}", "pairs"]
        columns += [word for name in metrics for word in (title_of(name), "95 %", "p")]
        cells = [
            [row["recipe"], str(row[metrics[0]]["pairs"]), *(cell for name in metrics for cell in _cells(row[name]))]
            for row in result["differences"]
        ]
        print_table(columns, cells, right=range(1, len(columns)))
    for line in [*result["sentences"], *remarks(result), *([f"page: {page}"] if page is not None else [])]:
        stdout().print(line, soft_wrap=True)


def _cells(mine: dict[str, Any]) -> tuple[str, str, str]:
    if not mine["pairs"]:
        return "", "", ""
    std = "" if mine["std"] is None else f" ± {100 * mine['std']:.1f}"
    interval = "" if mine["low"] is None else f"{100 * mine['low']:+.1f} to {100 * mine['high']:+.1f}"
    return f"{100 * mine['mean']:+.1f}{std}", interval, "-" if mine["p"] is None else f"{mine['p']:.3f}"


def probe(
    data_set: Annotated[str, Argument(metavar="FOLDER", help="Images, table:FILE.csv, or the name of a data set.")],
    trunks: Annotated[str, Option(help="Names, separated by commas; NAME=WEIGHTS for a file or named weights.")],
    head: Annotated[str | None, Option(metavar="RECIPE", help="Also train this head, such as cbml/frozen.")] = None,
    seeds: Annotated[int, Option(min=1, help="Number of heads for each trunk.")] = 1,
    out: Annotated[Path, Option("--out", "-o", help="The folder to write or continue.")] = Path("runs/probe"),
    device: OnDevice = "auto",
    data: DataFolder = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare frozen trunks (backbones) on your images.

    Tests the features of each trunk, their principal components and, with --head, heads that are trained on them.
    Repeat an interrupted command to continue.
    """
    from .probing import HEADS, probe, table_rows

    name = f"folder:{data_set}" if Path(data_set).is_dir() else data_set
    with Progress() as bar:
        named = [each for each in trunks.split(",") if each]
        probes = probe(name, named, out, head, seeds, device, data, overrides or (), bar)
    rows = [row for each in probes for row in table_rows(each)]
    right = [number for number in range(1, len(HEADS)) if number != HEADS.index("%")]
    page = f"page: {out / 'probe.html'}"
    print_result(as_json, {"trunks": probes}, page, columns=HEADS, rows=rows, right=right)

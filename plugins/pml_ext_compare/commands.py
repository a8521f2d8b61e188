"""``pml-ext compare`` and ``probe``."""

from __future__ import annotations

import functools
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from pml_ext.errors import ConfigError
from pml_ext_train.cli import (
    AsJson,
    DataFolder,
    Exclude,
    OnDevice,
    Overrides,
    Progress,
    RayAddress,
    overrides_of_exclude,
    print_json,
    print_result,
    say,
)

if TYPE_CHECKING:
    from pml_ext_train.recipe import Override, Recipe

    from .groups import Group
    from .jobs import Executor, Job
    from .study import Study

_METRICS = ["recall_at_1", "map_at_r", "nmi"]


def compare(
    runs: Annotated[
        list[str] | None, Argument(metavar="RECIPE|FOLDER", help="Recipes to run, and folders of finished runs.")
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

    Trains the recipes' runs that --out lacks; repeat an interrupted command to continue. Runs of a recipe with equal
    settings form a row. Prints means, and differences from a baseline, paired by seed. The printed p comes from the
    two-sided paired t-test, uncorrected: one in twenty equal rows has p < 0.05. The sentences use p-values corrected by
    Holm's procedure.

    Examples:
        pml-ext compare cbml/digits triplets/digits --seeds 5
        pml-ext compare runs/one runs/two
    """
    from .comparisons import compare as compare_groups
    from .runs import recipes_of_table, reported_of

    names = runs or []
    folders = [Path(name) for name in names if Path(name).is_dir()]
    recipes = [name for name in names if not Path(name).is_dir()]
    if table is not None:
        recipes += recipes_of_table(table, full=data is not None)
    options = _Options(
        recipes=recipes,
        folders=folders,
        out=out,
        seeds=seeds,
        folds=folds,
        jobs=jobs,
        on=on,
        ray_address=ray_address,
        data=data,
        device=device,
        overrides=overrides or [],
        tune=tune,
        save_recipe=save_recipe,
        latex=latex,
    )
    options.check()

    metrics = metric or reported_of(phase, _METRICS)
    studies, groups = options.studies_and_rows(phase, metrics, baseline)
    result = compare_groups(groups, metrics, phase, baseline)
    if studies:
        result["tuning"] = [study.about() for study in studies]
    page = options.write(studies, groups, result)

    if as_json:
        print_json(result)
    else:
        from .printing import print_comparison

        print_comparison(result, page)
    if any(row["errors"] for row in result["recipes"]):
        raise Exit(1)


@dataclass(frozen=True)
class _Options:
    recipes: list[str]
    folders: list[Path]
    out: Path | None
    seeds: int
    folds: int
    jobs: int
    on: Literal["here", "ray", "slurm"]
    ray_address: str | None
    data: Path | None
    device: str
    overrides: list[Override]
    tune: int  # number of trials; 0: the recipes are not tuned
    save_recipe: bool
    latex: bool

    def check(self) -> None:
        """Raise ConfigError for options that contradict each other."""
        if not self.recipes and not self.folders:
            raise ConfigError(
                "no recipe or folder of runs given; type: pml-ext compare RECIPE... --seeds 5 --out FOLDER"
            )
        if self.folds == 1:
            raise ConfigError("--folds 1: wanted 2 or more, or 0 for the recipe's own split")
        changes_runs = bool(self.tune or self.folds or self.overrides)
        has_run_options = changes_runs or self.jobs > 1 or self.seeds > 1 or self.on != "here"
        if has_run_options and not self.recipes:
            raise ConfigError(
                "--seeds, --folds, --jobs, --tune, --on and --set need recipes to run; only folders are given"
            )
        if self.latex and self.out is None:
            raise ConfigError("--latex needs --out FOLDER")
        if self.recipes and self.out is None:
            raise ConfigError(f"no folder {self.recipes[0]}; to run it as a recipe, add --out FOLDER")
        if self.save_recipe and not self.tune:
            raise ConfigError("--save-recipe needs --tune TRIALS")
        if self.ray_address is not None and self.on != "ray":
            raise ConfigError("--ray-address needs --on ray")

    def executor(self, out: Path) -> Executor:
        if self.on == "ray":
            from .on_ray import OnRay

            return OnRay(self.jobs, self.ray_address)
        if self.on == "slurm":
            from .on_slurm import OnSlurm

            return OnSlurm(self.jobs, out / "slurm")
        if self.jobs > 1:
            from .processes import Processes

            return Processes(self.jobs)
        from .jobs import Executor

        return Executor()

    def studies_and_rows(self, phase: str, metrics: list[str], baseline: str | None) -> tuple[list[Study], list[Group]]:
        """Do the missing trials and runs; return the studies and the rows of all runs."""
        from .groups import groups_below
        from .runs import check_reported

        if self.out is None or not self.recipes:
            return [], groups_below(self.folders)
        if not self.folders:  # their runs may have other metrics
            check_reported(self.recipes, self.overrides, phase, metrics, baseline)
        studies: list[Study] = []
        if self.tune:
            from .tuning import studies_of

            for name in self.recipes:
                studies += studies_of(name, self.out, self.tune, self.folds, self.data, self.overrides)
        return studies, self._rows(studies, self.out)

    def write(self, studies: list[Study], groups: list[Group], result: dict[str, Any]) -> Path | None:
        """Write the comparison and the tuned recipes to ``--out``."""
        if self.out is None:
            return None
        from .page import write_comparison

        say("drawing the comparison")
        page = write_comparison(self.out, groups, result, self.latex, self.device, self.data)
        for study in studies if self.save_recipe else ():
            if study.best() and study.count_finished() == study.trials:
                say(f"tuned recipe: {study.save_recipe(self.out)}")
        return page

    def _rows(self, studies: list[Study], out: Path) -> list[Group]:
        from .groups import disambiguate_names
        from .runs import plans_of, rows_of

        executor = self.executor(out)
        with closing(executor), AllRuns() as progress:
            recipes, failed = self._tuned(studies, executor, progress)
            plans = plans_of(recipes, out, self.seeds, self.folds, self.data, self.tune)
            groups = rows_of(
                plans=plans,
                folders=self.folders,
                executor=executor,
                on_progress=progress.on_progress,
                device=self.device,
                data=self.data,
                begin=functools.partial(progress.begin, "runs"),
            )
        rows = [*groups, *failed]
        disambiguate_names(rows)
        return rows

    def _tuned(
        self, studies: list[Study], executor: Executor, progress: AllRuns
    ) -> tuple[dict[str, Recipe], list[Group]]:
        """The tuned recipes, and a row for each recipe whose tuning failed."""
        if studies:
            from .tuning import tuned

            return tuned(
                studies,
                executor,
                progress.on_progress,
                self.device,
                self.data,
                begin=functools.partial(progress.begin, "trials"),
            )

        from pml_ext_train.recipe import load_recipes

        recipes: dict[str, Recipe] = {}
        for name in self.recipes:
            recipes |= load_recipes(name, self.overrides)
        return recipes, []


class AllRuns(Progress):
    """Progress of several runs: a bar, and a line per run."""

    def begin(self, noun: str, count: int) -> None:
        """Reset the bar for a number of jobs; ``noun`` is ``"runs"`` or ``"trials"``."""
        self._noun = noun
        self._count = count
        self._shares: dict[int, float] = {}
        self._bar.reset(self._task, total=count, visible=False)

    def on_progress(self, job: Job, said: float | str) -> None:
        """Show a run's finished fraction, from 0 to 1, or a message."""
        if isinstance(said, str):
            self.step(said)
            return
        self._shares[id(job)] = said
        if said == 1.0:
            ended = sum(share == 1.0 for share in self._shares.values())
            self.step(f"{job.name} has ended: {ended} of {self._count} {self._noun}")
        self._bar.update(self._task, description=self._noun, completed=sum(self._shares.values()), visible=True)


def probe(
    data_set: Annotated[str, Argument(metavar="FOLDER", help="Images, table:FILE.csv, or the name of a data set.")],
    trunks: Annotated[str, Option(help="Names, separated by commas; NAME=WEIGHTS for a file or named weights.")],
    head: Annotated[str | None, Option(metavar="RECIPE", help="Also train this head, such as cbml/frozen.")] = None,
    seeds: Annotated[int, Option(min=1, help="Number of heads for each trunk.")] = 1,
    out: Annotated[Path, Option("--out", "-o", help="The folder to write or continue.")] = Path("runs/probe"),
    device: OnDevice = "auto",
    data: DataFolder = None,
    overrides: Overrides = None,
    exclude: Exclude = None,
    as_json: AsJson = False,
) -> None:
    """Compare frozen trunks (backbones) on your images.

    Tests the features of each trunk, their principal components and, with --head, heads that are trained on them.
    Repeat an interrupted command to continue.

    Examples:
        pml-ext probe photographs --trunks convnet,timm/resnet18=DEFAULT
        pml-ext probe photographs --trunks timm/resnet18=DEFAULT --head cbml/frozen
    """
    from pml_ext.distributed import choose_device, keep_freed_memory

    from .probing import COLUMNS, ProbeOptions, probe as probe_trunks, rows_of_all

    keep_freed_memory(choose_device(device))
    name = f"folder:{data_set}" if Path(data_set).is_dir() else data_set
    trunk_names = [trunk.strip() for trunk in trunks.split(",") if trunk.strip()]
    if not trunk_names:
        raise ConfigError(f"--trunks {trunks!r}: wanted names of trunks, such as --trunks torchvision/resnet50=DEFAULT")
    settings = [*(overrides or ()), *overrides_of_exclude(exclude)]
    with Progress() as progress:
        probes = probe_trunks(trunk_names, ProbeOptions(name, out, head, seeds, device, data, settings, progress))

    numbers = [number for number, title in enumerate(COLUMNS) if title not in ("trunk", "%")]
    print_result(
        as_json,
        {"trunks": probes},
        f"page: {out / 'probe.html'}",
        columns=COLUMNS,
        rows=rows_of_all(probes),
        right=numbers,
    )

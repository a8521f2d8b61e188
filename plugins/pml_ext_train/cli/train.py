"""``pml-ext train`` and ``pml-ext report``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from pml_ext.errors import ConfigError

from .options import AsJson, DataFolder, Exclude, OnDevice, Overrides, RunFolder, overrides_of_exclude
from .output import Progress, process_number, stdout
from .results import print_results


def train(
    recipe: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            help="A recipe (a TOML description of data, network, loss and schedule): a .toml file, or the name of a "
            "packaged recipe, such as cbml/digits (pml-ext list recipes).",
        ),
    ] = None,
    data: DataFolder = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The run's folder (default runs/NAME-SEED-TIME).")] = None,
    seed: Annotated[int, Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, Option(min=1, help="Number of seeds: a run for each, then mean and standard deviation.")] = 1,
    device: OnDevice = "auto",
    overrides: Overrides = None,
    exclude: Exclude = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out.")] = False,
    on_nonfinite: Annotated[
        Literal["stop", "skip"],
        Option(help="End the run or skip the iteration if the loss, an embedding or a gradient is not finite."),
    ] = "stop",
    quick: Annotated[
        bool,
        Option("--quick", help="Skip the tests before training and on training images, and most figures."),
    ] = False,
    track: Annotated[list[str] | None, Option(help="tensorboard (default), wandb, mlflow, ...; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train and test a recipe, and write a report.

    For your own data, type --set data.name=folder:FOLDER, table:FILE or vectors:FILE. To have the recipe chosen for
    you, type pml-ext fit DATA.

    Metrics, checkpoints and report.html go into the run's folder. A recipe may have stages, which train first with
    other losses, and a sweep (sweep.KEY = [...]) with one run per value. For several processes, type
    torchrun --nproc-per-node N -m pml_ext train RECIPE; batch_size is the total over all processes. SIGINT (Ctrl-C),
    SIGTERM or SIGHUP writes a checkpoint after the current iteration and ends the run; a second signal ends it at once.

    Examples:
        pml-ext train cbml/digits
        pml-ext train cbml/digits --set loss.beta_pos=0.1 --seeds 3 --out runs/wide
    """
    from pml_ext.distributed.allocator import keep_freed_memory
    from pml_ext.distributed.devices import choose_device

    from ..launch.launch import QUICK, FailedRunsError, train as run_recipe
    from ..launch.plan import restarted
    from ..recipe import Override

    if recipe is None:
        raise ConfigError(
            "no recipe given; type pml-ext train cbml/digits, for example, or for data of your own pml-ext fit DATA"
        )
    first = process_number() == 0
    failed = None
    keep_freed_memory(choose_device(device))
    general = list(QUICK) if quick else []
    if track:
        general.append(Override("track", track, " ".join(f"--track {name}" for name in track)))
    with Progress() as bar:
        try:
            results = run_recipe(
                recipe,
                out=out,
                seed=seed,
                seeds=seeds,
                device=device,
                data=data,
                overrides=[*general, *(overrides or ()), *overrides_of_exclude(exclude)],
                resume=resume or restarted(),
                listener=bar if first else None,
                on_nonfinite=on_nonfinite,
            )
        except FailedRunsError as error:
            results = error.results
            failed = error
    if first:
        print_results(results, failed, as_json, quick)
    if failed is not None:
        raise failed


def report(run: RunFolder, data: DataFolder = None, device: OnDevice = "auto") -> None:
    """Redraw the report of a finished run.

    Examples:
        pml-ext report runs/digits
        pml-ext report runs/digits --device cpu
    """
    from ..launch.launch import draw_report

    with Progress() as bar:
        place = draw_report(run, device, data, bar)
    stdout().print(f"report: {place}", soft_wrap=True)

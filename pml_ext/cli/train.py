"""``pml-ext train``."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ..experiment import FailedRunsError, Listener


class Device(StrEnum):
    """Where to train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"
    xpu = "xpu"


class OnNonfinite(StrEnum):
    """What a loss, an embedding or a gradient does that is not finite."""

    stop = "stop"
    skip = "skip"


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe such as cbml/digits (pml-ext list recipes), or a .toml file.")
    ],
    data: Annotated[Path | None, typer.Option(help="The folder of the data, where the data set wants one.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write (default runs/NAME-SEED-TIME).")] = None,
    seed: Annotated[int, typer.Option(help="The seed, or the first of several.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of seeds: one run each, and a table of mean and spread.")] = 1,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.auto,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    on_nonfinite: Annotated[
        OnNonfinite,
        typer.Option(help="What an iteration does whose loss, embeddings or gradients are NaN or infinite."),
    ] = OnNonfinite.stop,
    as_json: Annotated[bool, typer.Option("--json", help="Write the metrics as JSON on stdout.")] = False,
) -> None:
    """Train a recipe, test it, and leave a folder with metrics, checkpoints and a report.

    Over several processes: torchrun --nproc-per-node N -m pml_ext train RECIPE. The recipe's batch size is that of all
    processes together. SIGINT (Ctrl-C), SIGTERM and SIGHUP end training after the iteration, with a checkpoint; a
    second one ends it at once.
    """
    from ..experiment import FailedRunsError, summarize
    from ..experiment import train as run_recipe
    from .output import process_number, stderr, stdout

    first, failed = process_number() == 0, None
    with progress(stderr()) as listener:
        try:
            results = run_recipe(
                recipe,
                out,
                seed,
                seeds,
                device.value,
                data,
                overrides or (),
                resume,
                listener if first else None,
                on_nonfinite.value,
            )
        except FailedRunsError as error:
            results, failed = error.results, error
    if first and as_json:
        _print_json(results, failed)
    elif first:
        if len(results) == 1 and failed is None:
            _print_metrics(results[0])
        elif results:
            _print_summary(results, summarize(results))
        for result in results:
            if (report := Path(result["folder"]) / "report.html").exists():
                stdout().print(f"report: {report}")
    if failed is not None:
        raise failed


def _print_json(results: list[dict[str, Any]], failed: FailedRunsError | None) -> None:
    from ..experiment import summarize
    from .output import print_json

    if len(results) == 1 and failed is None:
        print_json(results[0])
        return
    failures = {"failures": [failure.as_dict() for failure in failed.failures]} if failed is not None else {}
    print_json({"runs": results, "summary": summarize(results), **failures})


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Listener]:
    """What draws a run's progress: a bar on a terminal, a line per epoch elsewhere.

    Args:
        console: on stderr.
    """
    if not console.is_terminal:
        yield _Written(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Drawn(bar)


class _Written:
    """Writes a line for every step and every epoch, for log files and for patience."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None: ...

    def iteration(self, loss: float) -> None: ...

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        left = datetime.timedelta(seconds=round(seconds_left))
        self.step(f"epoch {epoch} of {epochs}: loss {loss:.4f}, {images_per_second:.0f} images/s, {left} left")

    def warn(self, text: str) -> None:
        self.step(f"warning: {text}")


class _Drawn:
    """Draws a run's progress: one bar over all its iterations, with the loss."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None, note="")

    def step(self, text: str) -> None:
        self._progress.console.print(text)
        self._progress.update(self._task, description="", note="")

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        self._progress.reset(self._task, total=iterations, description=f"epoch {epoch} of {epochs}", note="")

    def iteration(self, loss: float) -> None:
        self._progress.update(self._task, advance=1, note=f"loss {loss:.4f}")

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """Nothing: the bar has shown it."""

    def warn(self, text: str) -> None:
        self._progress.console.print(f"warning: {text}")


PHASES = {
    "raw": "raw pixels",
    "before": "before training",
    "after": "after training",
    "training": "training images",
    "learned_metric": "learned metric",
    "shortlist": "learned metric, shortlist",
}


def _metric_names(metrics: dict[str, Any]) -> list[str]:
    return [name for name in metrics["after"] if not isinstance(metrics["after"][name], str)]


def _print_metrics(metrics: dict[str, Any]) -> None:
    from .output import print_table

    names = _metric_names(metrics)
    rows = [
        [label, *(f"{100 * metrics[phase][name]:.1f}" if name in metrics[phase] else "" for name in names)]
        for phase, label in PHASES.items()
        if phase in metrics
    ]
    print_table([f"{metrics['recipe']}, %", *names], rows, right=range(1, len(names) + 1))


def _print_summary(results: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    from .output import mean_and_std, print_table

    names = _metric_names(results[0])
    rows = []
    for recipe, phases in summary.items():
        count = sum(result["recipe"] == recipe for result in results)
        for phase, values in phases.items():
            cells = [mean_and_std(values[name]) if name in values else "" for name in names]
            rows.append([recipe, PHASES[phase], str(count), *cells])
    print_table(["recipe", "%, mean ± std", "runs", *names], rows, right=range(2, len(names) + 3))

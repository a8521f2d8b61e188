"""``pml-ext train`` and ``pml-ext report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from typer import Argument, Option

from ..errors import ConfigError
from .options import AsJson, DataFolder, OnDevice, Overrides, RunFolder
from .output import Progress, process_number, stderr, stdout
from .results import print_results

if TYPE_CHECKING:
    from ..choice import Choice
    from ..recipe import Override
    from ..recipe.images import OwnImages


_CHOOSING = ("model", "loss", "stages", "sweep")  # settings that say what is trained


def train(
    recipe: Annotated[
        str | None,
        Argument(
            help="A recipe (a TOML description of data, network, loss and schedule): a .toml file, or the name of a "
            "packaged recipe, such as cbml/digits (pml-ext list recipes). Default with --images: the best of some, "
            "with --vectors: pml/vectors."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        Option(
            help="Your own images: a folder with a sub-folder per class, or a .csv table. The command chooses a split "
            "and batches, and, with the extra photos, tries on held-out classes whether frozen features, a head or the "
            "last blocks of a pretrained network are best. It prints what it chose, and why."
        ),
    ] = None,
    fine_tune: Annotated[
        bool,
        Option(
            "--fine-tune",
            help="With --images: train the whole network after what was found to be best, which takes much longer.",
        ),
    ] = False,
    vectors: Annotated[
        Path | None,
        Option(
            help="Your own embeddings: a .npz, .parquet or .safetensors file with embeddings and labels. The command "
            "chooses a split, a head and batches, and prints what it chose."
        ),
    ] = None,
    data: DataFolder = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The run's folder (default runs/NAME-SEED-TIME).")] = None,
    seed: Annotated[int, Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, Option(min=1, help="Number of seeds: a run for each, then mean and standard deviation.")] = 1,
    device: OnDevice = "auto",
    overrides: Overrides = None,
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

    The run's folder gets metrics, checkpoints and report.html. A recipe may have stages, which train with other losses
    first, and a sweep (sweep.KEY = [...]), which makes one run per value. For several processes, type
    torchrun --nproc-per-node N -m pml_ext train RECIPE; batch_size is the total over all processes. SIGINT (Ctrl-C),
    SIGTERM or SIGHUP writes a checkpoint after the current iteration and ends the run; a second signal ends it at once.
    """
    from ..distributed.allocator import keep_freed_memory
    from ..distributed.devices import choose_device
    from ..recipe import Override
    from ..training.launch import QUICK, FailedRunsError
    from ..training.launch import train as run_recipe
    from ..training.plan import restarted

    first = process_number() == 0
    failed = None
    keep_freed_memory(choose_device(device))
    general = list(QUICK) if quick else []
    if track:
        typed = " ".join(f"--track {name}" for name in track)
        general.append(Override("track", track, typed))
    options = _Options(
        overrides=list(overrides or ()),
        general=general,
        out=out,
        resume=resume or restarted(),
        seed=seed,
        device=device,
        data=data,
        fine_tune=fine_tune,
    )
    fitting = _what_to_train(recipe, images, vectors, options)
    with Progress() as bar:
        try:
            results = run_recipe(
                fitting.recipe,
                out=out,
                seed=seed,
                seeds=seeds,
                device=device,
                data=data,
                overrides=[*general, *fitting.settings, *options.overrides],
                resume=fitting.resume,
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


def _check_fine_tuning(images: Path | None, recipe: str | None, overrides: list[Override]) -> None:
    """Refuse --fine-tune where the command does not choose what is trained, or cannot."""
    from ..choice import fine_tuning

    if images is None:
        raise ConfigError("--fine-tune goes with --images FOLDER")
    if not _chooses(recipe, overrides):
        settings = ", ".join(_CHOOSING)
        raise ConfigError(
            f"--fine-tune goes on with what the command chooses; leave out RECIPE and --set of {settings}, or type: "
            f"pml-ext train {fine_tuning.BLOCKS_FIRST} --images {images}"
        )
    fine_tuning.check_possible()


def _chooses(recipe: str | None, overrides: list[Override]) -> bool:
    """Return whether the command chooses what is trained on somebody's images."""
    return recipe is None and not any(override.key.startswith(_CHOOSING) for override in overrides)


@dataclass(frozen=True)
class _Options:
    """The options that say how something is trained."""

    overrides: list[Override]
    general: list[Override]  # settings of other options than --set
    out: Path | None
    resume: bool
    seed: int
    device: str
    data: Path | None
    fine_tune: bool


class _Fitting(NamedTuple):
    """What is trained."""

    recipe: str
    settings: list[Override]  # that fit somebody's data, below the user's
    resume: bool  # whether the run's folder exists by now


def _what_to_train(recipe: str | None, images: Path | None, vectors: Path | None, options: _Options) -> _Fitting:
    """Return the recipe, which the options name or somebody's data get, and the settings that fit the data."""
    if options.fine_tune:
        _check_fine_tuning(images, recipe, options.overrides)
    if images is not None and vectors is not None:
        raise ConfigError("--images and --vectors both name the data; leave one out")
    if vectors is not None:
        return _recipe_and_settings_for_vectors(vectors, recipe, options)
    if images is not None:
        return _recipe_and_settings_for_images(images, recipe, options)
    if recipe is None:
        raise ConfigError(
            "no recipe given; wanted a recipe or --images FOLDER, or --vectors FILE; type: pml-ext train cbml/digits"
        )
    return _Fitting(recipe, [], options.resume)


def _tell(line: str) -> None:
    """Write a line about somebody's data on stderr, in the first process."""
    if process_number() == 0:
        stderr().print(line, soft_wrap=True)


def _recipe_and_settings_for_images(images: Path, recipe: str | None, options: _Options) -> _Fitting:
    """Return a recipe and its settings for somebody's images; say in a few lines what was chosen, and why."""
    from .. import choice
    from ..choice import fine_tuning
    from ..recipe import load_recipe
    from ..recipe.images import describe_images, settings_for_recipe
    from ..recipe.own_data import parsed_all

    found = describe_images(images, options.overrides, options.data)
    for line in found.description:
        _tell(line)
    begun = None
    if options.resume and options.out is not None:
        begun = choice.begun_run(options.out, found, _tell)
    if _chooses(recipe, options.overrides):
        if begun is not None:
            if options.fine_tune:
                fine_tuning.check_resumed(begun.folder, begun.recipe, load_recipe(begun.file))
            return _Fitting(begun.file, [], options.resume)
        reason = choice.why_not()
        if not reason:
            chosen = _chosen_by_trials(found, options)
            return _Fitting(chosen.recipe, parsed_all(chosen.settings), resume=options.out is not None)
        _tell(reason)
    recipe = recipe or choice.SMALL
    if recipe == choice.SMALL:
        _tell(found.last_line)
    fitting = list(settings_for_recipe(recipe, found))
    if begun is not None and begun.recipe == recipe:
        fitting = begun.settings(fitting)
    return _Fitting(recipe, parsed_all(fitting), options.resume)


def _chosen_by_trials(images: OwnImages, options: _Options) -> Choice:
    """Return what trials choose, or have chosen before the run was interrupted.

    Whatever would be refused after the trials is refused before them.
    """
    from .. import choice
    from ..choice import fine_tuning
    from ..recipe import load_recipe
    from ..recipe.own_data import parsed_all
    from ..training.plan import check_folder

    out = options.out
    check_folder(out, options.resume)
    if out is not None and options.resume:
        kept = choice.kept_choice(out, images)
        if kept is not None:
            if options.fine_tune:
                fine_tuning.check_resumed(out, kept.recipe, load_recipe(kept.recipe, parsed_all(kept.settings)))
            _tell(f"goes on with what was chosen before: {kept.title}")
            return kept
    settings = [*options.general, *options.overrides]
    choice.check_settings(images, settings)
    tried = options.overrides
    if options.fine_tune:
        fine_tuning.check_settings(images, settings)
        tried = fine_tuning.without_epochs(tried)
    with choice.begun_folder(out), Progress() as bar:
        listener = bar if process_number() == 0 else None
        chosen = choice.choose(images, tried, options.seed, options.device, options.data, listener, _tell)
        if options.fine_tune:
            chosen = fine_tuning.continued(chosen, images, options.overrides, options.device, options.data, _tell)
        if out is not None:
            choice.keep_choice(out, chosen, images)
    return chosen


def _recipe_and_settings_for_vectors(vectors: Path, recipe: str | None, options: _Options) -> _Fitting:
    """Return a recipe and its settings for somebody's vectors; say in a few lines what was chosen."""
    from ..recipe.own_data import parsed_all
    from ..recipe.vectors import RECIPE, describe_vectors, settings_for_vectors

    found = describe_vectors(vectors, options.overrides, options.data)
    recipe = recipe or RECIPE
    lines = found.description if recipe == RECIPE else found.description[:2]
    for line in lines:
        _tell(line)
    return _Fitting(recipe, parsed_all(settings_for_vectors(recipe, found)), options.resume)


def report(run: RunFolder, data: DataFolder = None, device: OnDevice = "auto") -> None:
    """Redraw the report of a finished run."""
    from ..training.launch import draw_report

    with Progress() as bar:
        place = draw_report(run, device, data, bar)
    stdout().print(f"report: {place}", soft_wrap=True)

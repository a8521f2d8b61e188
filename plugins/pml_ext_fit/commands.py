"""``pml-ext fit``: what is trained on somebody's own images or vectors is chosen, and then trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pml_ext.plugin import ConfigError
from pml_ext.tool import AsJson, DataFolder, OnDevice, Overrides, Progress, process_number, stderr

if TYPE_CHECKING:
    from pml_ext.tool import Override

    from .candidates import Choice
    from .images import OwnImages

_CHOOSING = ("model", "loss", "stages", "sweep")  # tables of a recipe that say what is trained


def fit(
    data_path: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Your own images, a folder with a sub-folder per class or a .csv table, or your own embeddings, a "
            ".npz, .parquet or .safetensors file with embeddings and labels.",
        ),
    ],
    data: DataFolder = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The run's folder (default runs/NAME-SEED-TIME).")] = None,
    seed: Annotated[int, Option(min=0, help="The seed of the split, the trials and the training.")] = 0,
    device: OnDevice = "auto",
    overrides: Overrides = None,
    fine_tune: Annotated[
        bool,
        Option(
            "--fine-tune",
            help="Train the whole network after what was found to be best for images, which takes much longer.",
        ),
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out, or its trials.")] = False,
    quick: Annotated[
        bool,
        Option("--quick", help="Skip the tests before training and on training images, and most figures."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose what to train on your own data, train and test it, and write a report.

    The command chooses a split and batches. With the extra photos it tries on held-out classes of images whether frozen
    features, a head or the last blocks of a pretrained network are best. It prints what it chose, and why. To train a
    recipe of your choice on the same data, type: pml-ext train RECIPE --set data.name=folder:FOLDER
    """
    from pml_ext.tool import QUICK, choose_device, keep_freed_memory, print_results, restarted, train

    keep_freed_memory(choose_device(device))
    options = FitOptions(
        overrides=list(overrides or ()),
        general=list(QUICK) if quick else [],
        out=out,
        resume=resume or restarted(),
        seed=seed,
        device=device,
        data=data,
        fine_tune=fine_tune,
    )
    fitting = _what_to_train(data_path, options)
    first = process_number() == 0
    with Progress() as bar:
        results = train(
            fitting.recipe,
            out=fitting.out,
            seed=seed,
            device=device,
            data=data,
            overrides=[*options.general, *fitting.settings, *options.overrides],
            resume=fitting.resume,
            listener=bar if first else None,
        )
    if first:
        print_results(results, None, as_json, quick)


@dataclass(frozen=True)
class FitOptions:
    """The options that say how something is trained."""

    overrides: list[Override]
    general: list[Override]  # settings of other options than --set
    out: Path | None
    resume: bool
    seed: int
    device: str
    data: Path | None
    fine_tune: bool


@dataclass(frozen=True)
class Fitting:
    """What is trained, and where."""

    recipe: str
    settings: list[Override]  # that fit somebody's data, below the user's
    out: Path | None
    resume: bool  # whether the run's folder exists by now


def _tell(line: str) -> None:
    """Write a line about somebody's data on stderr, in the first process."""
    if process_number() == 0:
        stderr().print(line, soft_wrap=True)


def _what_to_train(place: Path, options: FitOptions) -> Fitting:
    """Return the recipe that somebody's data get, and the settings that fit the data."""
    from pml_ext.tool import is_vector_file

    if is_vector_file(place):
        return _fitting_for_vectors(place, options)
    return _fitting_for_images(place, options)


def _fitting_for_vectors(place: Path, options: FitOptions) -> Fitting:
    """Return a recipe and its settings for somebody's vectors; say in a few lines what was chosen."""
    from pml_ext.tool import overrides_of

    from .vectors import RECIPE, describe_vectors

    if options.fine_tune:
        raise ConfigError(f"--fine-tune is for images, and {place} has vectors, without a network; leave it out")
    found = describe_vectors(place, options.overrides, options.data)
    for line in found.description:
        _tell(line)
    return Fitting(RECIPE, overrides_of(found.settings), options.out, options.resume)


def _fitting_for_images(place: Path, options: FitOptions) -> Fitting:
    """Return a recipe and its settings for somebody's images; say in a few lines what was chosen, and why."""
    from pml_ext.tool import RECIPE, load_recipe, overrides_of

    from . import begun, fine_tuning, selection
    from .candidates import SmallNetwork
    from .images import describe_images

    _check_nothing_is_chosen(place, options.overrides)
    if options.fine_tune:
        fine_tuning.check_possible()
    found = describe_images(place, options.overrides, options.data)
    for line in found.description:
        _tell(line)
    if options.resume and options.out is not None:
        tables = begun.begun_run(options.out, found.name, _tell)
        if tables is not None:
            file = str(options.out / RECIPE)
            if options.fine_tune:
                fine_tuning.check_resumed(options.out, tables["run"].get("recipe", ""), load_recipe(file))
            return Fitting(file, [], options.out, resume=True)
    reason = selection.why_not()
    if reason:
        _tell(reason)
        _tell(found.last_line)
        small = SmallNetwork(found)
        return Fitting(small.recipe, overrides_of(small.settings), options.out, options.resume)
    out, chosen = _chosen_by_trials(found, options)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, resume=True)


def _check_nothing_is_chosen(place: Path, overrides: list[Override]) -> None:
    """Refuse settings of what is trained, which the command chooses; ConfigError."""
    from .candidates import PRETRAINED

    for override in overrides:
        if override.key.partition(".")[0] in _CHOOSING:
            raise ConfigError(
                f"{override}: fit chooses the model and the loss for images; to choose them yourself, type: "
                f"pml-ext train {PRETRAINED} --set data.name=folder:{place} {override}"
            )


def _chosen_by_trials(images: OwnImages, options: FitOptions) -> tuple[Path, Choice]:
    """Return the run's folder, and what trials choose, or have chosen before the run was interrupted.

    Whatever would be refused after the trials is refused before them.
    """
    from pml_ext.tool import check_folder, default_folder, load_recipe, overrides_of

    from . import begun, fine_tuning, selection

    check_folder(options.out, options.resume)
    out = options.out
    if out is None:
        name = Path(images.name.partition(":")[2]).resolve().stem
        out = default_folder(name, options.seed)
    elif options.resume:
        kept = begun.kept_choice(out, images.name)
        if kept is not None:
            if options.fine_tune:
                recipe = load_recipe(kept.recipe, overrides_of(kept.settings))
                fine_tuning.check_resumed(out, kept.recipe, recipe)
            _tell(f"goes on with what was chosen before: {kept.title}")
            return out, kept
    settings = [*options.general, *options.overrides]
    selection.check_settings(images, settings)
    tried = options.overrides
    if options.fine_tune:
        fine_tuning.check_settings(images, settings)
        tried = fine_tuning.without_epochs(tried)
    where = (options.device, options.data)
    with begun.begun_folder(out), Progress() as bar:
        with begun.folder_of_trials(out) as folder:
            decision = selection.choose(images, tried, folder, options.seed, *where, bar, _tell)
        if options.fine_tune:
            chosen = fine_tuning.continued(decision, images, options.overrides, *where, _tell)
        else:
            chosen = decision.choice()
        begun.keep_choice(out, chosen, images.name)
    return out, chosen

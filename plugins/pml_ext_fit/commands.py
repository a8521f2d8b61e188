"""``pml-ext fit``: what is trained on somebody's own images or vectors is chosen, and then trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pml_ext.errors import ConfigError, DataError, NothingToLearnError
from pml_ext_train.cli import AsJson, DataFolder, OnDevice, Overrides, Progress, process_number

from .fitting import FitOptions, Fitting, Told, check_used, what_to_train

if TYPE_CHECKING:
    from pml_ext_train.recipe import Override

    from .trunk import Trunk


def fit(
    data_path: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Your own images, a folder with a sub-folder per class or a .csv or .parquet table, or your own "
            "embeddings, a .npz, .parquet or .safetensors file with embeddings and labels.",
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
    closed_form: Annotated[
        bool,
        Option(
            "--closed-form",
            help="Train nothing: deliver the features, as they are or whitened, whichever is best; takes a minute for "
            "1,000 images.",
        ),
    ] = False,
    trunk: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The pretrained trunk (backbone) of images in place of EfficientNet-Lite0: timm/NAME, "
            "torchvision/NAME, hf/NAME, the folder of a model, NAME=FILE, or a file of weights that tells its "
            "architecture.",
        ),
    ] = None,
    no_labels: Annotated[
        bool,
        Option(
            "--no-labels",
            help="Fit and search without labels, whatever the folders are named; flat folders and vectors without "
            "labels are taken so anyway.",
        ),
    ] = False,
    labels: Annotated[
        Path | None,
        Option(
            metavar="TABLE",
            help="Classes of a folder's images, a .csv or .parquet table with the columns path and class: fits a head "
            "to features that are kept, and indexes the folder again.",
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out, or its trials.")] = False,
    quick: Annotated[
        bool,
        Option("--quick", help="Skip the tests before training and on training images, and most figures."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose what to train on your own data, train and test it, and write a report.

    The command chooses a split and batches. With the extra photos it tries on held-out classes of images whether frozen
    features, whitened ones or the last blocks of a pretrained network are best. It prints what it chose, and why. To
    train a recipe of your choice on the same data, type: pml-ext train RECIPE --set data.name=folder:FOLDER

    Examples:
        pml-ext fit photographs
        pml-ext fit vectors.npz --out runs/vectors
    """
    from pml_ext.distributed import choose_device, keep_freed_memory
    from pml_ext_train.cli import print_results
    from pml_ext_train.launch import QUICK, restarted

    from .unlabeled import has_no_labels

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
        closed_form=closed_form,
    )
    if labels is not None and no_labels:
        raise ConfigError("--labels and --no-labels contradict each other; leave one out")
    with Progress() as bar:
        told = Told(bar)
        if trunk is not None:
            options = replace(options, trunk=_named_trunk(trunk, data_path, told))
        if labels is not None:
            results = _with_later_labels(data_path, labels, options, bar)
        elif no_labels or has_no_labels(data_path):
            results = _without_labels(data_path, options, bar)
        else:
            results = _with_labels(data_path, options, told)
    if process_number() == 0:
        print_results(results, None, as_json, quick or labels is not None)


def _with_labels(place: Path, options: FitOptions, told: Told) -> list[dict[str, Any]]:
    """Choose what to train, and train it; where there is nothing to learn, deliver the features."""
    fitting = what_to_train(place, options, told)
    try:
        return _train(fitting, options, told)
    except NothingToLearnError as error:
        if fitting.as_they_are is None or _sets_model(options.overrides):
            raise
        return _train(_delivered_as_they_are(fitting, error.folder, told), options, told)


def _named_trunk(text: str, place: Path, told: Told) -> Trunk:
    """Return the trunk that ``--trunk`` names, and say in a line what is known of it."""
    from pml_ext_train.data import is_vector_file

    from .images import is_table
    from .trunk import trunk_named

    if place.is_file() and is_vector_file(place) and not is_table(place):
        raise ConfigError(f"--trunk is for images, and {place} has vectors, without a network; leave it out")
    trunk = trunk_named(text)
    told(f"trunk: {trunk.title}, {trunk.features:,} features, images: {trunk.framing.title}")
    return trunk


def _with_later_labels(folder: Path, labels: Path, options: FitOptions, bar: Progress) -> list[dict[str, Any]]:
    """Fit a head to kept features of a folder by a table of classes, and index the folder by it."""
    from pml_ext.distributed import num_processes
    from pml_ext_train.launch import QUICK

    from . import folder_runs
    from .later_labels import labeled_table
    from .unlabeled import index_run, next_commands

    if options.fine_tune or num_processes() > 1:
        raise ConfigError(f"--labels fits a head in closed form; to train, type: pml-ext fit {labels} --data {folder}")
    check_used(folder, options, "--labels")
    table = labeled_table(folder, labels, options.trunk, options.overrides, options.device, bar)
    options = replace(options, closed_form=True, general=list(QUICK), trunk=table.trunk)
    options = replace(options, overrides=[*table.settings, *options.overrides])
    told = Told(bar)
    try:
        results = _train(what_to_train(table.file, options, told), options, told)
    except (ConfigError, DataError) as error:
        error.source = table.sources.get(error.source, error.source)
        raise
    results[0].pop("verdict", None)  # whose comparison the folds have made
    run = Path(results[0]["folder"])
    index_run(run, folder, options.device)
    folder_runs.remember(folder, run)
    bar.step(next_commands(run, folder))
    return results


def _without_labels(place: Path, options: FitOptions, bar: Progress) -> list[dict[str, Any]]:
    """Make a run and a collection of data without labels; return its ``metrics.json``, in a list."""
    from .unlabeled import UnlabeledFit, fit_unlabeled, next_commands

    if options.fine_tune:
        raise ConfigError(f"--fine-tune trains by labels, and {place} has none here; leave it out")
    check_used(place, options, "data without labels")
    asked = UnlabeledFit(
        place=place,
        out=options.out,
        overrides=options.overrides,
        seed=options.seed,
        device=options.device,
        resume=options.resume,
        listener=bar,
        trunk=options.trunk,
    )
    results = fit_unlabeled(asked)
    bar.step(next_commands(Path(results[0]["folder"]), place))
    return results


def _train(fitting: Fitting, options: FitOptions, told: Told) -> list[dict[str, Any]]:
    """Train and test; return the contents of ``metrics.json``, with the run's folder."""
    from pml_ext_train.launch import train

    return train(
        fitting.recipe,
        out=fitting.out,
        seed=options.seed,
        device=options.device,
        data=options.data,
        overrides=[*options.general, *fitting.settings, *options.overrides],
        resume=fitting.resume,
        listener=told.listener,
    )


def _sets_model(overrides: list[Override]) -> bool:
    """Return whether the user says what network is trained."""
    return any(override.key.partition(".")[0] == "model" for override in overrides)


def _delivered_as_they_are(fitting: Fitting, folder: Path, told: Told) -> Fitting:
    """Return what is delivered where there was nothing to learn, in place of the run that has found that out.

    Its files are removed. What is written about the choice goes on after a kill.
    """
    from pml_ext_train.launch import locked
    from pml_ext_train.recipe import overrides_of
    from pml_ext_train.records import remove_run

    from . import resume

    chosen = fitting.as_they_are
    assert chosen is not None
    told(f"takes {chosen.title}: no pair of the batches adds to the loss, so there is nothing to learn")
    if process_number() == 0:
        with locked(folder):
            remove_run(folder)
            resume.keep_choice(folder, chosen, fitting.name)
    settings = overrides_of(chosen.settings)
    return Fitting(chosen.recipe, settings, folder, True, fitting.name, as_they_are=None)

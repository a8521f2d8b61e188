"""``pml-ext fit``: what is trained on somebody's own images or vectors is chosen, and then trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pml_ext.plugin import ConfigError, DataError
from pml_ext.tool import CHOICE, AsJson, DataFolder, NothingToLearnError, OnDevice, Overrides, Progress, process_number

if TYPE_CHECKING:
    from pml_ext.tool import Override

    from .candidates import Choice
    from .trials import Workplace

_CHOOSING = ("model", "loss", "stages", "sweep")  # tables of a recipe that say what is trained


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
    """
    from pml_ext.tool import QUICK, choose_device, keep_freed_memory, print_results, restarted

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
    with Progress() as bar:
        told = Told(bar)
        if labels is not None and no_labels:
            raise ConfigError("--labels and --no-labels contradict each other; leave one out")
        if labels is not None:
            results = _with_later_labels(data_path, labels, options, bar)
            print_results(results, None, as_json, quick=True)
            return
        if no_labels or has_no_labels(data_path):
            results = _without_labels(data_path, options, bar)
            print_results(results, None, as_json, quick)
            return
        fitting = _what_to_train(data_path, options, told)
        try:
            results = _train(fitting, options, told)
        except NothingToLearnError as error:
            if fitting.as_they_are is None or _sets_model(options.overrides):
                raise
            results = _train(_delivered_as_they_are(fitting, error.folder, told), options, told)
    if process_number() == 0:
        print_results(results, None, as_json, quick)


def _with_later_labels(folder: Path, labels: Path, options: FitOptions, bar: Progress) -> list[dict[str, Any]]:
    """Fit a head to kept features of a folder by a table of classes, and index the folder by it."""
    from pml_ext.tool import QUICK, num_processes

    from . import folder_runs
    from .later_labels import labeled_table
    from .unlabeled import index_run, next_commands

    if options.fine_tune or num_processes() > 1:
        raise ConfigError(f"--labels fits a head in closed form; to train, type: pml-ext fit {labels} --data {folder}")
    table = labeled_table(folder, labels, options.overrides, options.device, bar)
    options = replace(options, closed_form=True, general=list(QUICK), overrides=[*table.settings, *options.overrides])
    told = Told(bar)
    try:
        results = _train(_what_to_train(table.file, options, told), options, told)
    except (ConfigError, DataError) as error:
        raise table.of_given(error) from None
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
    asked = UnlabeledFit(
        place=place,
        out=options.out,
        overrides=options.overrides,
        seed=options.seed,
        device=options.device,
        resume=options.resume,
        listener=bar,
    )
    results = fit_unlabeled(asked)
    bar.step(next_commands(Path(results[0]["folder"]), place))
    return results


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
    closed_form: bool


@dataclass(frozen=True)
class Fitting:
    """What is trained, and where."""

    recipe: str
    settings: list[Override]  # that fit somebody's data, below the user's
    out: Path | None
    resume: bool  # whether the run's folder exists by now
    name: str  # of the data set
    as_they_are: Choice | None  # what is delivered if there is nothing to learn; None if this is it


class Told:
    """The progress of the command, which the first process alone shows."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.listener = bar if process_number() == 0 else None

    def __call__(self, line: str) -> None:
        """Write a line about somebody's data on stderr."""
        if self.listener is not None:
            self.listener.step(line)


def _train(fitting: Fitting, options: FitOptions, told: Told) -> list[dict[str, Any]]:
    """Train and test; return the contents of ``metrics.json``, with the run's folder."""
    from pml_ext.tool import train

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


def _sets_what_is_trained(overrides: list[Override]) -> bool:
    """Return whether the user says what is trained, so that nothing is chosen."""
    return any(override.key.partition(".")[0] in _CHOOSING for override in overrides)


def _delivered_as_they_are(fitting: Fitting, folder: Path, told: Told) -> Fitting:
    """Return what is delivered where there was nothing to learn, in place of the run that has found that out.

    Its files are removed. What is written about the choice goes on after a kill.
    """
    from pml_ext.tool import locked, overrides_of, remove_run

    from . import begun

    chosen = fitting.as_they_are
    assert chosen is not None
    told(f"takes {chosen.title}: no pair of the batches adds to the loss, so there is nothing to learn")
    if process_number() == 0:
        with locked(folder):
            remove_run(folder)
            begun.keep_choice(folder, chosen, fitting.name)
    settings = overrides_of(chosen.settings)
    return Fitting(chosen.recipe, settings, folder, True, fitting.name, as_they_are=None)


def _what_to_train(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return the recipe that somebody's data get, and the settings that fit the data."""
    from pml_ext.tool import is_vector_file

    from .images import is_table

    if is_vector_file(place) and not is_table(place):
        return _fitting_for_vectors(place, options, told)
    return _fitting_for_images(place, options, told)


def _fitting_for_vectors(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return a recipe and its settings for somebody's vectors; say in a few lines what was chosen."""
    from pml_ext.tool import load_recipe, num_processes, overrides_of

    from . import begun, selection
    from .vectors import RECIPE, describe_vectors

    if options.fine_tune:
        raise ConfigError(f"--fine-tune is for images, and {place} has vectors, without a network; leave it out")
    found = describe_vectors(place, options.overrides, options.data)
    for line in found.description:
        told(line)
    trains_as_told = _sets_what_is_trained(options.overrides)
    if trains_as_told or num_processes() > 1:
        kept = begun.kept_choice(options.out, found.name) if options.resume and options.out is not None else None
        if kept is not None:
            told(f"goes on with what was chosen before: {kept.title}")
            return Fitting(kept.recipe, overrides_of(kept.settings), options.out, True, found.name, None)
        for line in found.of_training:
            told(line)
        settings = overrides_of(found.settings)
        return Fitting(RECIPE, settings, options.out, options.resume, found.name, found.as_they_are)

    def choose(place: Workplace) -> Choice:
        return selection.choose_for_vectors(found, place, options.data, options.closed_form).choice()

    check = partial(load_recipe, RECIPE, [*overrides_of(found.settings), *options.general, *options.overrides])
    out, chosen = _chosen_by_trials(found.name, options, told, check, choose)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, found.as_they_are)


def _fitting_for_images(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return a recipe and its settings for somebody's images; say in a few lines what was chosen, and why."""
    from pml_ext.tool import RECIPE, flat, load_recipe, overrides_of

    from . import begun, fine_tuning, selection
    from .candidates import SmallNetwork, features_as_they_are
    from .framing import DEFAULT, framing_of
    from .images import describe_images

    _check_nothing_is_chosen(place, options.overrides)
    if options.fine_tune and options.closed_form:
        raise ConfigError("--closed-form trains nothing, and --fine-tune the whole network; leave one out")
    if options.fine_tune:
        fine_tuning.check_possible()
    found = describe_images(place, options.overrides, options.data)
    for line in found.description:
        told(line)
    reason = selection.why_not()
    if options.resume and options.out is not None:
        tables = begun.begun_run(options.out, found.name, told)
        if tables is not None:
            file = str(options.out / RECIPE)
            if options.fine_tune:
                fine_tuning.check_resumed(options.out, tables["run"].get("recipe", ""), load_recipe(file))
            framing = framing_of(flat(tables))
            features = features_as_they_are(found, pretrained=not reason, framing=framing)
            return Fitting(file, [], options.out, True, found.name, features)
    if reason:
        told(reason)
        told(found.last_line)
        small = SmallNetwork(found)
        features = features_as_they_are(found, pretrained=False, framing=DEFAULT)
        of_small = overrides_of(small.settings)
        return Fitting(small.recipe, of_small, options.out, options.resume, found.name, features)
    settings = [*options.general, *options.overrides]

    def check() -> None:
        selection.check_overrides(found, settings)
        if options.fine_tune:
            fine_tuning.check_overrides(found, settings)

    def choose(place: Workplace) -> Choice:
        if not options.fine_tune:
            return selection.choose(found, place, options.data, options.closed_form).choice()
        tried = replace(place, overrides=fine_tuning.without_epochs(place.overrides))
        decision = selection.choose(found, tried, options.data, options.closed_form)
        return fine_tuning.continued(decision, found, place.overrides, options.device, options.data, told)

    out, chosen = _chosen_by_trials(found.name, options, told, check, choose)
    features = features_as_they_are(found, pretrained=True, framing=framing_of(chosen.settings))
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, features)


def _check_nothing_is_chosen(place: Path, overrides: list[Override]) -> None:
    """Refuse settings of what is trained, which the command chooses; ConfigError."""
    from .candidates import PRETRAINED
    from .images import name_of

    for override in overrides:
        if override.key.partition(".")[0] in _CHOOSING:
            raise ConfigError(
                f"{override}: fit chooses the model and the loss for images; to choose them yourself, type: "
                f"pml-ext train {PRETRAINED} --set data.name={name_of(place)} {override}"
            )


def _chosen_by_trials(
    name: str,
    options: FitOptions,
    told: Told,
    check: Callable[[], object],
    choose: Callable[[Workplace], Choice],
) -> tuple[Path, Choice]:
    """Return the run's folder, and what trials choose for a data set, or have chosen before an interruption.

    ``check`` refuses before the trials whatever would be refused after them.
    """
    from pml_ext.tool import check_folder, default_folder, load_recipe, overrides_of

    from . import begun, fine_tuning
    from .trials import Workplace

    check_folder(options.out, options.resume)
    out = options.out
    if out is None:
        stem = Path(name.partition(":")[2]).resolve().stem
        out = default_folder(stem, options.seed)
    elif options.resume:
        kept = begun.kept_choice(out, name)
        if kept is not None:
            if options.fine_tune:
                recipe = load_recipe(kept.recipe, overrides_of(kept.settings))
                fine_tuning.check_resumed(out, kept.recipe, recipe)
            told(f"goes on with what was chosen before: {kept.title}")
            return out, kept
    check()

    def stopped(again: str) -> str:
        if (out / CHOICE).is_file():
            return f"after the choice; {again}"
        return f"in the trials, before anything was chosen; {again}, which makes them again"

    with begun.begun_folder(out, stopped):
        with begun.folder_of_trials(out) as folder:
            place = Workplace(options.overrides, folder, options.seed, options.device, told.bar, told)
            chosen = choose(place)
        begun.keep_choice(out, chosen, name)
    return out, chosen

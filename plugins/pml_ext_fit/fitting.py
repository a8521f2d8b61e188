"""What ``fit`` trains: a recipe and its settings, chosen by trials or by the options."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pml_ext.distributed import num_processes
from pml_ext.errors import ConfigError
from pml_ext_train.data import is_vector_file
from pml_ext_train.launch import check_folder, default_folder
from pml_ext_train.recipe import Override, flat, load_recipe, overrides_of, tables_of
from pml_ext_train.records import CHOICE, RECIPE
from pml_ext_train.training import Listener

from . import fine_tuning, resume, selection
from .candidates import Choice, features_as_they_are, small_network
from .fit_options import FitOptions
from .framing import DEFAULT, framing_of
from .images import OwnImages, describe_images, is_table, name_of
from .trials import Workplace
from .trunk import LITE0, PRETRAINED, check_resumed, trunk_of_table
from .vectors import RECIPE as VECTORS, describe_vectors

_CHOOSING = ("model", "loss", "stages", "sweep")  # tables of a recipe that say what is trained

# settings that only training uses, with a point at the end
_OF_TRAINING = (
    "schedule.",
    "optimizer.",
    "sampler.",
    "loss.",
    "stages.",
    "data.augment.",
    "data.views.",
    "data.images.flip.",
    "data.images.random_crop.",
    "data.images.random_crop_scale.",
    "engine.micro_batch.",
    "engine.clip_gradient.",
    "engine.checkpoint_minutes.",
)


@dataclass(frozen=True)
class Fitting:
    """What is trained, and where."""

    recipe: str
    settings: list[Override]  # that fit the data; the user's take precedence
    out: Path | None
    resume: bool  # the run's folder exists
    name: str  # of the data set
    as_they_are: Choice | None  # delivered if there is nothing to learn


def check_used(place: Path, options: FitOptions, why: str) -> None:
    """Raise ConfigError for options without effect: --data for anything but a table, and settings of training.

    ``why`` names what makes training impossible; empty if something is trained.
    """
    if options.data is not None and (place.is_absolute() or why) and not is_table(place):
        raise ConfigError(f"--data {options.data}: only the paths in a table are relative to it; leave it out")
    for override in options.overrides if why else ():
        for key in flat(tables_of([override])):
            if f"{key}.".startswith(_OF_TRAINING):
                raise ConfigError(f"{override}: only training uses {key}, and {why} trains nothing; leave one out")


def what_to_train(place: Path, options: FitOptions, listener: Listener) -> Fitting:
    """Choose the recipe for labeled data, and the settings that fit them."""
    check_used(place, options, "--closed-form" if options.closed_form else "")
    if is_vector_file(place) and not is_table(place):
        return _fitting_for_vectors(place, options, listener)
    return _fitting_for_images(place, options, listener)


def _fitting_for_vectors(place: Path, options: FitOptions, listener: Listener) -> Fitting:
    if options.fine_tune:
        raise ConfigError(f"--fine-tune is for images, and {place} has vectors, without a network; leave it out")
    found = describe_vectors(place, options.overrides, options.data)
    for line in found.description:
        listener.step(line)
    is_chosen = any(override.key.partition(".")[0] in _CHOOSING for override in options.overrides)
    if is_chosen or num_processes() > 1:
        if options.closed_form:
            raise ConfigError(
                "--closed-form compares by trials, in one process; leave out torchrun and settings of the model"
            )
        kept = resume.kept_choice(options, found.name)
        if kept is not None:
            listener.step(f"goes on with what was chosen before: {kept.title}")
            return Fitting(kept.recipe, overrides_of(kept.settings), options.out, True, found.name, None)
        for line in found.of_training:
            listener.step(line)
        return Fitting(
            VECTORS, overrides_of(found.settings), options.out, options.resume, found.name, found.as_they_are
        )

    def choose(place: Workplace) -> Choice:
        return selection.choose_for_vectors(found, place, options.closed_form).choice()

    check = partial(load_recipe, VECTORS, [*overrides_of(found.settings), *options.general, *options.overrides])
    out, chosen = _chosen_by_trials(found.name, options, listener, check, choose)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, found.as_they_are)


def _fitting_for_images(place: Path, options: FitOptions, listener: Listener) -> Fitting:
    _check_nothing_is_chosen(place, options.overrides)
    if options.fine_tune and options.closed_form:
        raise ConfigError("--closed-form trains nothing, and --fine-tune the whole network; leave one out")
    needing = "--fine-tune" if options.fine_tune else "--closed-form" if options.closed_form else ""
    reason = selection.why_not(options.trunk is not None, needing)
    found = describe_images(place, options.overrides, options.data)
    for line in found.description:
        listener.step(line)
    if options.resume and options.out is not None:
        begun = _begun_for_images(options.out, found, options, listener, pretrained=not reason)
        if begun is not None:
            return begun
    if reason:
        listener.step(reason)
        listener.step(found.last_line)
        small = small_network(found)
        features = features_as_they_are(found, DEFAULT, None)
        return Fitting(small.recipe, overrides_of(small.settings), options.out, options.resume, found.name, features)
    settings = [*options.general, *options.overrides]
    trunk = options.trunk or LITE0

    def check() -> None:
        selection.check_overrides(found, trunk, settings)
        if options.fine_tune:
            fine_tuning.check_overrides(found, trunk, settings)

    def choose(place: Workplace) -> Choice:
        if not options.fine_tune:
            return selection.choose(found, trunk, place, options.closed_form).choice()
        tried = replace(place, overrides=fine_tuning.without_epochs(place.overrides))
        decision = selection.choose(found, trunk, tried, fine_tune=True)
        return fine_tuning.continued(decision, found, trunk, place)

    out, chosen = _chosen_by_trials(found.name, options, listener, check, choose)
    features = features_as_they_are(found, framing_of(chosen.settings), trunk)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, features)


def _begun_for_images(
    folder: Path, images: OwnImages, options: FitOptions, listener: Listener, pretrained: bool
) -> Fitting | None:
    """What an earlier run in the folder trains, with its own trunk; None without a run."""
    tables = resume.begun_run(folder, images.name, listener.step)
    if tables is None:
        return None
    file = str(folder / RECIPE)
    if options.fine_tune:
        fine_tuning.check_resumed(folder, tables["run"].get("recipe", ""), load_recipe(file))
    table = tables["model"]["trunk"]
    check_resumed(folder, table, options.trunk)
    trunk = trunk_of_table(table) if pretrained else None
    features = features_as_they_are(images, framing_of(flat(tables)), trunk)
    return Fitting(file, [], options.out, True, images.name, features)


def _check_nothing_is_chosen(place: Path, overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.key in ("model.trunk", "model.trunk.name"):
            raise ConfigError(f"{override}: the trunk of fit has an option of its own; type: --trunk {override.value}")
        if override.key.partition(".")[0] in _CHOOSING:
            raise ConfigError(
                f"{override}: fit chooses the model and the loss for images; to choose them yourself, type: "
                f"pml-ext train {PRETRAINED} --set data.name={name_of(place)} {override}"
            )


def _chosen_by_trials(
    name: str,
    options: FitOptions,
    listener: Listener,
    check: Callable[[], object],
    choose: Callable[[Workplace], Choice],
) -> tuple[Path, Choice]:
    """Return the run's folder and the choice, made by trials or kept from before an interruption.

    ``check`` raises errors before the trials that training would raise after them.
    """
    check_folder(options.out, options.resume)
    out = options.out
    kept = resume.kept_choice(options, name)
    if out is None:
        out = default_folder(Path(name.partition(":")[2]).resolve().stem, options.seed)
    elif kept is not None:
        if options.fine_tune:
            fine_tuning.check_resumed(out, kept.recipe, load_recipe(kept.recipe, overrides_of(kept.settings)))
        check_resumed(out, kept.settings.get("model.trunk"), options.trunk)
        listener.step(f"goes on with what was chosen before: {kept.title}")
        return out, kept
    check()

    def stopped(again: str) -> str:
        if (out / CHOICE).is_file():
            return f"after the choice; {again}"
        return f"in the trials, before anything was chosen; {again}, which makes them again"

    with resume.begun_folder(out, stopped):
        with resume.folder_of_trials(out) as folder:
            place = Workplace(
                options.overrides, folder, options.seed, options.device, listener, listener.step, options.data
            )
            started = time.perf_counter()
            chosen = choose(place)
            chosen = replace(chosen, seconds=round(time.perf_counter() - started, 3))
        resume.keep_choice(out, chosen, name)
    return out, chosen

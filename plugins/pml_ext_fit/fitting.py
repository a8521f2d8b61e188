"""What ``fit`` trains on somebody's data: a recipe and its settings, chosen by trials or by the options."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext.errors import ConfigError
from pml_ext_train.cli import Progress, process_number
from pml_ext_train.recipe import flat, tables_of
from pml_ext_train.records import CHOICE

if TYPE_CHECKING:
    from pml_ext_train.recipe import Override

    from .candidates import Choice
    from .images import OwnImages
    from .trials import Workplace
    from .trunk import Trunk

_CHOOSING = ("model", "loss", "stages", "sweep")  # tables of a recipe that say what is trained

# settings that only training uses; each ends with a point, as keys do here
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
    trunk: Trunk | None = None  # that --trunk names


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


def _sets_what_is_trained(overrides: list[Override]) -> bool:
    """Return whether the user says what is trained, so that nothing is chosen."""
    return any(override.key.partition(".")[0] in _CHOOSING for override in overrides)


def check_used(place: Path, options: FitOptions, why: str) -> None:
    """Refuse options that nothing uses: --data but for a table, and settings of training where there is none.

    ``why`` says in two words or more why nothing is trained; empty where something is.
    """
    from .images import is_table

    if options.data is not None and (place.is_absolute() or why) and not is_table(place):
        raise ConfigError(f"--data {options.data}: only the paths in a table are relative to it; leave it out")
    for override in options.overrides if why else ():
        for key in flat(tables_of([override])):
            if f"{key}.".startswith(_OF_TRAINING):
                raise ConfigError(f"{override}: only training uses {key}, and {why} trains nothing; leave one out")


def what_to_train(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return the recipe that somebody's data get, and the settings that fit the data."""
    from pml_ext_train.data import is_vector_file

    from .images import is_table

    check_used(place, options, "--closed-form" if options.closed_form else "")
    if is_vector_file(place) and not is_table(place):
        return _fitting_for_vectors(place, options, told)
    return _fitting_for_images(place, options, told)


def _fitting_for_vectors(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return a recipe and its settings for somebody's vectors; say in a few lines what was chosen."""
    from pml_ext.distributed import num_processes
    from pml_ext_train.recipe import load_recipe, overrides_of

    from . import resume, selection
    from .vectors import RECIPE, describe_vectors

    if options.fine_tune:
        raise ConfigError(f"--fine-tune is for images, and {place} has vectors, without a network; leave it out")
    found = describe_vectors(place, options.overrides, options.data)
    for line in found.description:
        told(line)
    trains_as_told = _sets_what_is_trained(options.overrides)
    if options.closed_form and (trains_as_told or num_processes() > 1):
        raise ConfigError(
            "--closed-form compares by trials, in one process; leave out torchrun and settings of the model"
        )
    if trains_as_told or num_processes() > 1:
        kept = resume.kept_choice(options.out, found.name) if options.resume and options.out is not None else None
        if kept is not None:
            told(f"goes on with what was chosen before: {kept.title}")
            return Fitting(kept.recipe, overrides_of(kept.settings), options.out, True, found.name, None)
        for line in found.of_training:
            told(line)
        settings = overrides_of(found.settings)
        return Fitting(RECIPE, settings, options.out, options.resume, found.name, found.as_they_are)

    def choose(place: Workplace) -> Choice:
        return selection.choose_for_vectors(found, place, options.closed_form).choice()

    check = partial(load_recipe, RECIPE, [*overrides_of(found.settings), *options.general, *options.overrides])
    out, chosen = _chosen_by_trials(found.name, options, told, check, choose)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, found.as_they_are)


def _fitting_for_images(place: Path, options: FitOptions, told: Told) -> Fitting:
    """Return a recipe and its settings for somebody's images; say in a few lines what was chosen, and why."""
    from pml_ext_train.recipe import overrides_of

    from . import fine_tuning, selection
    from .candidates import SmallNetwork, features_as_they_are
    from .framing import DEFAULT, framing_of
    from .images import describe_images
    from .trunk import LITE0

    _check_nothing_is_chosen(place, options.overrides)
    if options.fine_tune and options.closed_form:
        raise ConfigError("--closed-form trains nothing, and --fine-tune the whole network; leave one out")
    needing = "--fine-tune" if options.fine_tune else "--closed-form" if options.closed_form else ""
    reason = selection.why_not(options.trunk is not None, needing)
    found = describe_images(place, options.overrides, options.data)
    for line in found.description:
        told(line)
    if options.resume and options.out is not None:
        begun = _begun_for_images(options.out, found, options, told, pretrained=not reason)
        if begun is not None:
            return begun
    if reason:
        told(reason)
        told(found.last_line)
        small = SmallNetwork(found)
        features = features_as_they_are(found, DEFAULT, None)
        of_small = overrides_of(small.settings)
        return Fitting(small.recipe, of_small, options.out, options.resume, found.name, features)
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
        decision = selection.choose(found, trunk, tried, options.closed_form)
        return fine_tuning.continued(decision, found, trunk, place)

    out, chosen = _chosen_by_trials(found.name, options, told, check, choose)
    features = features_as_they_are(found, framing_of(chosen.settings), trunk)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), out, True, found.name, features)


def _begun_for_images(
    folder: Path, images: OwnImages, options: FitOptions, told: Told, pretrained: bool
) -> Fitting | None:
    """Return what the run in a folder trains, with the trunk that it was begun with; None without a run."""
    from pml_ext_train.recipe import flat, load_recipe
    from pml_ext_train.records import RECIPE

    from . import fine_tuning, resume
    from .candidates import features_as_they_are
    from .framing import framing_of
    from .trunk import check_resumed, trunk_of_table

    tables = resume.begun_run(folder, images.name, told)
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


def _check_nothing_is_chosen(place: Path, overrides: list[Override]) -> None:
    """Refuse settings of what is trained, which the command chooses; ConfigError."""
    from .images import name_of
    from .trunk import PRETRAINED

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
    told: Told,
    check: Callable[[], object],
    choose: Callable[[Workplace], Choice],
) -> tuple[Path, Choice]:
    """Return the run's folder, and what trials choose for a data set, or have chosen before an interruption.

    ``check`` refuses before the trials whatever would be refused after them.
    """
    from pml_ext_train.launch import check_folder, default_folder
    from pml_ext_train.recipe import load_recipe, overrides_of

    from . import fine_tuning, resume
    from .trials import Workplace
    from .trunk import check_resumed

    check_folder(options.out, options.resume)
    out = options.out
    if out is None:
        stem = Path(name.partition(":")[2]).resolve().stem
        out = default_folder(stem, options.seed)
    elif options.resume:
        kept = resume.kept_choice(out, name)
        if kept is not None:
            if options.fine_tune:
                recipe = load_recipe(kept.recipe, overrides_of(kept.settings))
                fine_tuning.check_resumed(out, kept.recipe, recipe)
            check_resumed(out, kept.settings.get("model.trunk"), options.trunk)
            told(f"goes on with what was chosen before: {kept.title}")
            return out, kept
    check()

    def stopped(again: str) -> str:
        if (out / CHOICE).is_file():
            return f"after the choice; {again}"
        return f"in the trials, before anything was chosen; {again}, which makes them again"

    with resume.begun_folder(out, stopped):
        with resume.folder_of_trials(out) as folder:
            place = Workplace(options.overrides, folder, options.seed, options.device, told.bar, told, options.data)
            started = time.perf_counter()
            chosen = choose(place)
            chosen = replace(chosen, seconds=round(time.perf_counter() - started, 3))
        resume.keep_choice(out, chosen, name)
    return out, chosen

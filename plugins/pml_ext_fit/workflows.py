"""``fit`` of data with labels, without labels, and with labels that come later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pml_ext.distributed import num_processes
from pml_ext.errors import ConfigError, DataError, NothingToLearnError
from pml_ext_train.cli import process_number
from pml_ext_train.data import is_vector_file
from pml_ext_train.launch import QUICK, locked, train
from pml_ext_train.recipe import overrides_of
from pml_ext_train.records import remove_run
from pml_ext_train.retrieval import EmbeddingListener
from pml_ext_train.training import Listener, Silence

from . import folder_runs, resume
from .fit_options import FitOptions
from .fitting import Fitting, check_used, what_to_train
from .images import is_table
from .later_labels import labeled_table
from .trunk import Trunk, trunk_named
from .unlabeled import fit_unlabeled, has_no_labels, index_run, next_commands

Results = list[dict[str, Any]]  # the contents of metrics.json, with the run's folder


def fit_data(
    place: Path, options: FitOptions, bar: EmbeddingListener, trunk: str | None, labels: Path | None, no_labels: bool
) -> Results:
    """Fit images or vectors; the first process alone shows progress."""
    if labels is not None and no_labels:
        raise ConfigError("--labels and --no-labels contradict each other; leave one out")
    listener: Listener = bar if process_number() == 0 else Silence()
    if trunk is not None:
        options = replace(options, trunk=_named_trunk(trunk, place, listener))
    if labels is not None:
        return _with_later_labels(place, labels, options, bar)
    if no_labels or has_no_labels(place, options.exclude or ()):
        return _without_labels(place, options, bar)
    return _with_labels(place, options, listener)


def _named_trunk(text: str, place: Path, listener: Listener) -> Trunk:
    if place.is_file() and is_vector_file(place) and not is_table(place):
        raise ConfigError(f"--trunk is for images, and {place} has vectors; leave it out")
    trunk = trunk_named(text)
    listener.step(f"trunk: {trunk.title}, {trunk.features:,} features, images: {trunk.framing.title}")
    return trunk


def _with_labels(place: Path, options: FitOptions, listener: Listener) -> Results:
    """Choose what to train, and train it; deliver the features if there is nothing to learn."""
    fitting = what_to_train(place, options, listener)
    try:
        return _train(fitting, options, listener)
    except NothingToLearnError as error:
        sets_model = any(override.key.partition(".")[0] == "model" for override in options.overrides)
        if fitting.as_they_are is None or sets_model:
            raise
        return _train(_delivered_as_they_are(fitting, error.folder, listener), options, listener)


def _with_later_labels(folder: Path, labels: Path, options: FitOptions, bar: EmbeddingListener) -> Results:
    """Fit a head to kept features of a folder by a table of classes, and index the folder with it."""
    if options.fine_tune or num_processes() > 1:
        raise ConfigError(f"--labels fits a head in closed form; to train, type: pml-ext fit {labels} --data {folder}")
    check_used(folder, options, "--labels")
    exclude = options.exclude or ()
    table = labeled_table(folder, labels, options.trunk, options.overrides, options.device, bar, exclude)
    overrides = [*table.settings, *options.overrides]
    options = replace(options, closed_form=True, general=list(QUICK), trunk=table.trunk, overrides=overrides)
    try:
        results = _train(what_to_train(table.file, options, bar), options, bar)
    except (ConfigError, DataError) as error:
        error.source = table.sources.get(error.source, error.source)
        raise
    results[0].pop("verdict", None)  # the folds made this comparison
    run = Path(results[0]["folder"])
    index_run(run, folder, options)
    folder_runs.remember(folder, run)
    bar.step(next_commands(run, folder))
    return results


def _without_labels(place: Path, options: FitOptions, bar: EmbeddingListener) -> Results:
    if options.fine_tune:
        raise ConfigError(f"--fine-tune trains by labels, and {place} has none here; leave it out")
    check_used(place, options, "data without labels")
    results = fit_unlabeled(place, options, bar)
    bar.step(next_commands(Path(results[0]["folder"]), place))
    return results


def _train(fitting: Fitting, options: FitOptions, listener: Listener) -> Results:
    return train(
        fitting.recipe,
        out=fitting.out,
        seed=options.seed,
        device=options.device,
        data=options.data,
        overrides=[*options.general, *fitting.settings, *options.overrides],
        resume=fitting.resume,
        listener=listener,
    )


def _delivered_as_they_are(fitting: Fitting, folder: Path, listener: Listener) -> Fitting:
    """Replace a run that had nothing to learn by the features; the new choice survives a kill."""
    chosen = fitting.as_they_are
    assert chosen is not None
    listener.step(f"delivers {chosen.title}: no pair of the batches adds to the loss, so there is nothing to learn")
    if process_number() == 0:
        with locked(folder):
            remove_run(folder)
            resume.keep_choice(folder, chosen, fitting.name)
    return Fitting(chosen.recipe, overrides_of(chosen.settings), folder, True, fitting.name, as_they_are=None)

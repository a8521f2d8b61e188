"""The choice of what to train on somebody's own images: what is best depends on them, and is tried on some classes.

Where images are no squares, features of their middle and of whole images, squashed to squares, are compared first.
Candidates stand in the order of their cost. A later one is taken only if it is better, on training classes that were
held out for that, than all before it, and the difference is significant. So the network that is delivered is not worse
than the pretrained features that it starts from, as far as these classes tell. Test images are not looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data import LabeledImages, hold_out_classes, prepare
from ..distributed.devices import choose_device
from ..errors import ConfigError, DataError, MissingExtraError, StoppedError, one_line
from ..evaluation.calculator import RetrievalAccuracyCalculator
from ..files import DamagedError, read_json, toml_value, write_json, writing
from ..networks.efficientnet_lite import IMAGENET, check_packages
from ..networks.memory_format import use_channels_last
from ..networks.trunks import whitened_components
from ..recipe import Recipe, build_dataset, build_network, flat, load_recipe, nested, preprocessing_of
from ..recipe.images import OwnImages, iterations_of, settings_for_recipe
from ..recipe.schema import MOST
from . import signals
from .activations import GIGABYTE, in_units, size_of
from .batches import embed_batches
from .folder import CHOICE, RECIPE
from .launch import tables_of_run
from .listener import Listener, Silence
from .loop import train_run
from .records import Records
from .run import Run
from .trackers import import_tracker

SMALL = "pml/photographs"
PRETRAINED = "pml/photographs-pretrained"
LAST_BLOCKS = "last blocks"  # the title of a candidate
TRUNK = "efficientnet-lite0"
FEATURES = 1280  # of the trunk
WHITENED = 128
HELD_OUT = 0.25  # of the training classes
FEWEST_CLASSES = 12  # training classes, of which three are held out; fewer tell nothing about others
FEWEST_COMPARED = 3  # held-out classes with two images, whose MAP@R is compared
SIGNIFICANT = 0.05  # p of a paired t-test over the classes
MOST_VIEWS = 8  # augmented views of an image whose activations are kept
VIEWS_IN_ALL = 15_000  # of all training images: about two minutes on two cores
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
SMALL_SIDE = 64  # pixels; up to it, a small network from scratch is tried as well
TIMED_IMAGES = 32
# seconds of a step from cached activations, over those of embedding the images of its batch
STEP = 0.75

BATCHES = ("sampler", "sampler.name", "sampler.m", "sampler.batch_size")  # settings of the images of a batch
CUTS = ("data.images.squash", "data.images.crop", "data.images.resize")  # settings of the part of an image that is seen

TESTS_OF_TRIALS = (
    f"evaluation.validation={HELD_OUT}",
    "evaluation.validation_trains=false",
    "evaluation.held_out=drawn",
    "evaluation.select=map_at_r",
    "evaluation.select_on=validation",
    f"evaluation.every={MOST}",
    "evaluation.baselines=false",
    "evaluation.training_images=0",
    "track=[]",
)

_FOLD = "evaluation.fold"  # a part of the run's own validation classes; trials hold out others

ByClass = Tensor  # MAP@R of each class that was held out, [C], float64


class Choice(NamedTuple):
    """A recipe and its settings for somebody's images; the description says how they were chosen."""

    recipe: str
    settings: list[str]
    title: str  # of the candidate


@dataclass(frozen=True)
class Candidate:
    """Something that can be delivered."""

    title: str
    recipe: str
    settings: tuple[str, ...]


def why_not() -> str:
    """Return why pretrained candidates cannot be tried here; empty if they can."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"several processes try nothing, and train a small network from scratch; or name a recipe: {PRETRAINED}"
    try:
        check_packages(TRUNK, IMAGENET)
    except MissingExtraError as error:
        return (
            f"trains a small network from scratch; with ImageNet weights it would first try the features of {TRUNK} "
            f"({error})"
        )
    return ""


class BegunRun(NamedTuple):
    """A run that a folder holds, or the first of several."""

    folder: Path
    tables: dict[str, Any]  # of its recipe, with [run]

    @property
    def file(self) -> str:
        """The file of the recipe."""
        return str(self.folder / RECIPE)

    @property
    def recipe(self) -> str:
        """The name of the recipe."""
        return str(self.tables["run"].get("recipe", self.file))

    def settings(self, fitting: Iterable[str]) -> list[str]:
        """Return fitting settings with the run's own values, which are those of the images that it began with."""
        own = flat(self.tables)
        settings = []
        for setting in fitting:
            key = setting.partition("=")[0]
            if key in own:
                setting = f"{key}={json.dumps(own[key], ensure_ascii=False)}"
            settings.append(setting)
        return settings


def begun_run(folder: Path, images: OwnImages, say: Callable[[str], None]) -> BegunRun | None:
    """Return the run, or the first of several, that a folder has; None without one, or where its recipe is damaged.

    ConfigError for a run of other images.
    """
    for place in (folder, *sorted(folder.glob("seed-*"))):
        if not (place / RECIPE).is_file():
            continue
        try:
            tables = tables_of_run(place)
        except DataError:
            say(f"{place / RECIPE} is damaged; it is written again")
            return None
        _check_images(place, tables.get("data", {}).get("name"), images)
        return BegunRun(place, tables)
    return None


def _check_images(place: Path, name: Any, images: OwnImages) -> None:
    if name != images.name:
        raise ConfigError(f"{place} holds a run of {name}, not of {images.name}; resume it with the same")


def keep_choice(folder: Path, chosen: Choice, images: OwnImages) -> None:
    """Write what was chosen, so that a run that is killed before its recipe is written goes on without trials."""
    write_json(folder / CHOICE, {"data": images.name, **chosen._asdict()})


def kept_choice(folder: Path, images: OwnImages) -> Choice | None:
    """Return the choice of :func:`keep_choice`; None without one; ConfigError for one of other images."""
    file = folder / CHOICE
    if not file.is_file():
        return None
    try:
        kept = read_json(file)
        _check_images(folder, kept["data"], images)
        return Choice(kept["recipe"], [*kept["settings"]], kept["title"])
    except (DamagedError, KeyError, TypeError) as error:
        text = f"{file}: not what a command has chosen ({one_line(error)})"
        raise DataError(f"{text}; delete it, and --resume makes the trials again") from None


@contextlib.contextmanager
def begun_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder of a run for its trials, so that ``--resume`` goes on after a kill.

    An error removes the folder again, if it was created here. A signal ends the trials by a StoppedError, which says
    what to type.
    """
    if folder is None:
        again = "type the same command again"
    else:
        again = f"go on with the same command with --out {shlex.quote(str(folder))} --resume"
    created = folder is not None and not folder.exists()
    if folder is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    try:
        with signals.listening():
            yield
    except StoppedError as error:
        if folder is not None and (folder / CHOICE).is_file():
            where = f"after the choice; {again}"
        else:
            where = f"in the trials, before anything was chosen; {again}, which makes them again"
        raise signals.stopped(error.signal, where) from None
    except Exception:
        if folder is not None and created:
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()
        raise


def frozen_features(images: OwnImages, squash: bool) -> Candidate:
    """Return the features of the pretrained trunk: of the middle of images, or of whole ones, squashed to squares."""
    title = "frozen features of whole images" if squash else "frozen features"
    untrained = ("model.embedder=none", f"model.embedding_size={FEATURES}")
    return Candidate(title, PRETRAINED, (*_frozen_settings(images, squash), *untrained))


def candidates(images: OwnImages, squash: bool = False) -> list[Candidate]:
    """Return what can be delivered, in the order of cost: frozen, whitened, a head, last blocks, a small network.

    ``squash`` is whether pretrained trunks see whole images, squashed to squares, rather than their middle.
    """
    pretrained = _pretrained_settings(images, squash)
    frozen = _frozen_settings(images, squash)
    found = [
        frozen_features(images, squash),
        Candidate("frozen features, whitened", PRETRAINED, (*frozen, "model.embedder=pca", _whitened(images))),
        Candidate("head on frozen features", PRETRAINED, (*frozen, "schedule.epochs=20")),
        Candidate(LAST_BLOCKS, PRETRAINED, (*pretrained, f"model.views={views_of(images.training_images)}")),
    ]
    if images.side < SMALL_SIDE:
        found.append(Candidate("small network from scratch", SMALL, settings_for_recipe(SMALL, images)))
    return found


def _pretrained_settings(images: OwnImages, squash: bool) -> tuple[str, ...]:
    settings = settings_for_recipe(PRETRAINED, images)
    if squash:
        settings = (*settings, "data.images.squash=true")
    return settings


def _frozen_settings(images: OwnImages, squash: bool) -> tuple[str, ...]:
    seen_once = "data.cache=none"
    return (*_pretrained_settings(images, squash), "model.freeze=trunk", "model.views=1", seen_once)


def _whitened(images: OwnImages) -> str:
    components = min(WHITENED, images.training_images * 3 // 4 - 1)
    return f"model.embedding_size={components}"


def views_of(images: int) -> int:
    """Return the number of views of each training image: 8 of few, one of many."""
    return max(1, min(MOST_VIEWS, VIEWS_IN_ALL // images))


def check_settings(images: OwnImages, overrides: Iterable[str]) -> None:
    """Refuse settings, or trackers that are not installed, before the trials rather than after them."""
    frozen = candidates(images)[0]
    recipe = load_recipe(frozen.recipe, [*frozen.settings, *overrides])
    for tracker in recipe.track:
        import_tracker(tracker.name)


def choose(
    images: OwnImages,
    overrides: Iterable[str],
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener | None,
    say: Callable[[str], None],
) -> Choice:
    """Try the candidates and return the simplest of the best; ``say`` gets lines about what is done and found."""
    overrides = [*overrides]
    known = candidates(images)
    if not images.splits_by_class or images.training_classes < FEWEST_CLASSES:
        return _untried(known[0], f"of a split by class with {FEWEST_CLASSES} training classes", say)

    training = readable_training_images(known[0], overrides, data, say)
    images = images.with_training_images(training)
    known = candidates(images)
    if images.training_classes < FEWEST_CLASSES:
        return _untried(known[0], f"of {FEWEST_CLASSES} training classes with images that can be read", say)
    if _compared_classes(training, seed) < FEWEST_COMPARED:
        return _untried(known[0], f"of which {FEWEST_COMPARED} have two images", say)

    held_out = round(images.training_classes * HELD_OUT)
    titles = ", ".join(candidate.title for candidate in known)
    line = f"tries {titles} of {TRUNK} on {held_out} of the training classes, held out for that"
    per_image = seconds_per_image(known[0], overrides, device, data)
    if per_image is not None:
        minutes = max(1, round(_estimated_seconds(images, per_image) / 60))
        line += f"; with the training and the tests of the best, about {minutes} minutes"
    say(line)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pml-ext-choice-") as folder:
        trials = _Trials(images, overrides, Path(folder), seed, device, data, listener or Silence(), say)
        squash = trials.prefer_whole_images()
        known = candidates(images, squash)
        trials.try_all(known)
    values = trials.values
    best = simplest_of_the_best(values)
    description = description_of(best, values)
    say(f"{description}. That took {time.perf_counter() - started:.0f} s.")
    chosen = next(candidate for candidate in known if candidate.title == best)
    return Choice(chosen.recipe, [*chosen.settings, f"description={json.dumps(description)}"], best)


def _untried(frozen: Candidate, wanted: str, say: Callable[[str], None]) -> Choice:
    """Return the frozen features without a trial; ``wanted`` are the held-out classes that a trial needs."""
    say(
        f"takes frozen features of {TRUNK}: whether training makes them better can be tried on held-out classes, "
        f"{wanted}; to train anyway, name a recipe: {PRETRAINED}"
    )
    return Choice(frozen.recipe, [*frozen.settings], frozen.title)


def readable_training_images(
    candidate: Candidate, overrides: Iterable[str], data: Path | None, say: Callable[[str], None]
) -> LabeledImages:
    """Return the training images without files that cannot be read, which are left out of the trials and the run."""
    recipe = load_recipe(candidate.recipe, [*candidate.settings, *overrides])
    splits = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, splits)
    _, plain = preprocessing.transforms()
    skips = recipe.data.unreadable == "skip"
    readable, _ = prepare(splits.train, plain, skip_unreadable=skips, workers=recipe.data.workers, tell=say)
    return readable


def _compared_classes(training: LabeledImages, seed: int) -> int:
    """Return the number of classes with two images among those that the trials hold out."""
    _, held_out = hold_out_classes(training, HELD_OUT, seed)
    _, counts = np.unique(held_out.labels, return_counts=True)
    return int((counts > 1).sum())


def simplest_of_the_best(values: Mapping[str, ByClass]) -> str:
    """Return the title of the candidate to take.

    ``values`` are by title, the simplest first. A candidate replaces an earlier one if its mean over classes is greater
    and a paired t-test over the classes has p < 0.05.
    """
    from scipy.stats import ttest_rel

    best, *others = values
    for title in others:
        difference = float((values[title] - values[best]).mean())
        p = float(ttest_rel(values[title], values[best]).pvalue)
        if difference > 0 and p < SIGNIFICANT:
            best = title
    return best


def description_of(best: str, values: Mapping[str, ByClass]) -> str:
    """Return a line with the values of all candidates, the first words of a report."""
    found = ", ".join(f"{title} {_percent(by_class)}" for title, by_class in values.items())
    classes = len(next(iter(values.values())))
    return (
        f"The {best}, chosen by MAP@R in % on {classes} held-out training classes: {found}; a more costly candidate is "
        f"taken where it is significantly better (p < {SIGNIFICANT})"
    )


def _percent(values: ByClass) -> str:
    return f"{100 * float(values.mean()):.1f}"


class _Trials:
    """Trials of candidates on training classes that are held out for that, and the values by title."""

    def __init__(
        self,
        images: OwnImages,
        overrides: list[str],
        folder: Path,
        seed: int,
        device: str,
        data: Path | None,
        listener: Listener,
        say: Callable[[str], None],
    ) -> None:
        self.values: dict[str, ByClass] = {}
        self._images = images
        self._overrides = [override for override in overrides if override.partition("=")[0].strip() != _FOLD]
        self._folder = folder
        self._seed = seed
        self._device = device
        self._data = data
        self._listener = listener
        self._say = say

    def prefer_whole_images(self) -> bool:
        """Return whether features of whole images are significantly better than those of their middle.

        False for squares, and where the overrides say how images are cut.
        """
        cut_is_given = not _keys(self._overrides).isdisjoint(CUTS)
        if cut_is_given or self._images.aspect < LEAST_ASPECT:
            return False
        middle = frozen_features(self._images, squash=False)
        whole = frozen_features(self._images, squash=True)
        for candidate in (middle, whole):
            run = self._run(candidate)
            self._tell(candidate.title, _map_at_r_by_class(run, run.embeddings("validation", "trunk")))
        return simplest_of_the_best(self.values) == whole.title

    def try_all(self, known: list[Candidate]) -> None:
        """Train the candidates, and tell their values as they are found."""
        frozen, whitened, head, *others = known
        found = train_run(self._run(head), finish=_features_and_head)
        self._tell(frozen.title, found["features"])
        self._tell(whitened.title, found["whitened"])
        self._tell(head.title, found["embeddings"])
        for candidate in others:
            run = self._run(candidate)
            if self._takes_too_much(candidate, run):
                continue
            found = train_run(run, finish=_embeddings)
            self._tell(candidate.title, found["embeddings"])

    def _takes_too_much(self, candidate: Candidate, run: Run) -> bool:
        """Return whether the activations of all training images are more than may be kept; say so."""
        cut = run.trunk_cut(run.stages[0])
        if cut is None:
            return False
        size = size_of(cut, self._images.training_images, run.recipe.model.views)
        most = cut.table.gigabytes * GIGABYTE
        if size <= most:
            return False
        found = f"their activations would take {in_units(size)}, and {in_units(most)} is the most"
        self._say(f"  {candidate.title}: left out, since {found}; smaller images take less: --set data.image_size=N")
        return True

    def _tell(self, title: str, by_class: ByClass) -> None:
        if title not in self.values:
            self.values[title] = by_class
            self._say(f"  {title}: MAP@R {_percent(by_class)} on the classes that were held out")

    def _run(self, candidate: Candidate) -> Run:
        """Return the run of a candidate on the training classes that are not held out, in a new folder."""
        recipe = self._recipe_of(candidate)
        place = Path(tempfile.mkdtemp(dir=self._folder))
        return Run(recipe, candidate.recipe, place, self._seed, self._device, self._data, self._listener)

    def _recipe_of(self, candidate: Candidate) -> Recipe:
        """Return the recipe of a trial, with batches of the classes that are left.

        Where the overrides set batches, they are the final run's, made smaller if the classes do not fill them.
        """
        left = self._images.training_classes - round(self._images.training_classes * HELD_OUT)
        settings = [*candidate.settings]
        batches_are_given = not _keys(self._overrides).isdisjoint(BATCHES)
        if not batches_are_given:
            settings += self._images.batches_of(left)
        if candidate.recipe == PRETRAINED:
            share = left / self._images.training_classes
            settings.append(f"sampler.iterations={iterations_of(self._images, share)}")
        settings += [*self._overrides, *TESTS_OF_TRIALS]
        recipe = load_recipe(candidate.recipe, settings)
        most = left * recipe.sampler.settings.get("m", recipe.sampler.batch_size)
        if batches_are_given and recipe.sampler.batch_size > most:
            recipe = load_recipe(candidate.recipe, [*settings, f"sampler.batch_size={most}"])
        return recipe


def _keys(overrides: Iterable[str]) -> set[str]:
    """Return the dotted keys that overrides set, those in tables as well."""
    keys: set[str] = set()
    for override in overrides:
        name, _, text = override.partition("=")
        key = name.strip()
        value = toml_value(text.strip(), "--set ...")
        keys.update(flat(nested(key, value)))
    return keys


def _features_and_head(run: Run, records: Records) -> dict[str, Any]:
    """Return MAP@R by class of the features, of their whitened components, and of the embeddings of a head."""
    features = run.embeddings("validation", "trunk")
    whitening = whitened_components(run.embeddings("train", "trunk"), WHITENED)
    return {
        "features": _map_at_r_by_class(run, features),
        "whitened": _map_at_r_by_class(run, whitening(features)),
        **_embeddings(run, records),
    }


def _embeddings(run: Run, _: Records) -> dict[str, Any]:
    """Return MAP@R by class of the embeddings."""
    return {"embeddings": _map_at_r_by_class(run, run.embeddings("validation"))}


def _map_at_r_by_class(run: Run, points: Tensor) -> ByClass:
    """Return the mean MAP@R of each class of the validation images that has two of them."""
    metric = "mean_average_precision_at_r"
    calculator = RetrievalAccuracyCalculator([metric], k="max_bin_count", return_per_class=True, device=run.device)
    found = calculator.evaluate(nn.functional.normalize(points), run.true_labels("validation").cpu())
    return torch.tensor(found.accuracies[metric], dtype=torch.float64)


def _estimated_seconds(images: OwnImages, per_image: float) -> float:
    """Return the seconds of the trials, and of the training and the tests of the last blocks.

    ``per_image`` are the seconds of embedding an image.
    """
    trained = images.training_images
    epochs = load_recipe(PRETRAINED).schedule.epochs
    embedded = 2 * trained + trained * views_of(trained) + 4 * images.tested_images
    seen = 64 * iterations_of(images) * 2 * epochs  # in the trial and in the training
    return per_image * (embedded + STEP * seen)


def seconds_per_image(candidate: Candidate, overrides: Iterable[str], device: str, data: Path | None) -> float | None:
    """Return the seconds that the trunk of a candidate takes for an image, reading included.

    None where none of the 32 images that are timed can be read.
    """
    recipe = load_recipe(candidate.recipe, [*candidate.settings, *overrides])
    images = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, images)
    chosen = torch.device(choose_device(device))
    network = build_network(recipe.model, preprocessing).to(chosen)
    if chosen.type == "cpu":
        use_channels_last(network, preprocessing.channels, preprocessing.image_size)
    _, plain = preprocessing.transforms()
    count = min(TIMED_IMAGES, len(images.train))
    evenly = np.linspace(0, len(images.train) - 1, count).astype(np.int64)
    try:
        some, _ = prepare(images.train.subset(evenly), plain, skip_unreadable=True)
    except DataError:
        return None
    some = some.with_transform(plain)
    seconds = []
    for _ in range(2):  # the first pass warms up
        started = time.perf_counter()
        for _ in embed_batches(network.trunk, network.embedder, some, chosen, batch_size=16):
            pass
        seconds.append(time.perf_counter() - started)
    return seconds[-1] / len(some)

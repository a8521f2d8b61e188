"""Choose what to deliver for labeled data, by trials on held-out training classes.

Candidates are fitted on the other classes. The best closed form is taken, unless a trained candidate is significantly
better. Trained ones are tried in one fold, and in more while nothing is decided. Test images are never used.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pml_ext.distributed import release_freed_memory
from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_train.data import DataSplits, LabeledImages, prepare
from pml_ext_train.recipe import Override, build_dataset, flat, load_recipe, overrides_of, preprocessing_of, tables_of
from pml_ext_train.records import import_tracker

from . import vectors as own_vectors
from .candidates import LAST_BLOCKS, Candidate, Choice, closed_forms, features_of_images, last_blocks, trained
from .duration import DEPTH, FEATURES, FRAMING, TRIAL, described as expected_in_all, expected
from .folds import Folds, folds_of
from .framing import Framing, as_given, framings_to_compare
from .images import OwnImages
from .scores import SIGNIFICANT, Scored, Scores, best_of, gain, is_significant, joined, scores_of
from .timing import TimeLeft
from .trials import Trials, Workplace
from .trunk import BLOCKS_FIRST, LITE0, PRETRAINED, Trunk

SAMPLE = 300  # training images on which ways to frame them are compared
LEAST_OF_CLASS = 8  # of a class in the sample, if it has as many
MANY_IMAGES = 20_000  # more than these: a larger size, or more blocks, must be significantly better


@dataclass(frozen=True)
class Decision:
    """The candidate to deliver; the description says how it was chosen, and is empty without trials."""

    candidate: Candidate
    description: str = ""

    def choice(self) -> Choice:
        """The recipe and its settings."""
        settings = self.candidate.settings
        description = self.description or self.candidate.description
        if description:
            settings = settings | {"description": description}
        return Choice(self.candidate.title, self.candidate.recipe, settings)


def why_not(trunk_is_named: bool = False, needing: str = "") -> str:
    """Why pretrained candidates cannot be tried here, or an empty string.

    With a named trunk, or an option ``needing`` them, this is an error.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if not (trunk_is_named or needing):
            return (
                "several processes compare nothing, and train a small network from scratch; "
                f"or: pml-ext train {PRETRAINED}"
            )
        recipe = BLOCKS_FIRST if needing == "--fine-tune" else PRETRAINED
        raise ConfigError(
            f"{needing or '--trunk'} needs trials, which run in one process; leave out torchrun, or "
            f"type: pml-ext train {recipe} --set data.name=folder:FOLDER"
        )
    if trunk_is_named:
        return ""
    try:
        load_recipe(PRETRAINED)
    except MissingExtraError as error:
        if needing:
            raise
        return (
            "trains a small network from scratch; with ImageNet weights it would first try the features of "
            f"{LITE0.name} ({error})"
        )
    return ""


def check_overrides(images: OwnImages, trunk: Trunk, overrides: Iterable[Override]) -> None:
    """Raise errors of settings and missing trackers before the trials."""
    frozen = features_of_images(images, trunk.framing, trunk=trunk)
    for tracker in load_recipe(frozen.recipe, [*overrides_of(frozen.settings), *overrides]).track:
        import_tracker(tracker.name)


def choose(
    images: OwnImages, trunk: Trunk, place: Workplace, closed_form: bool = False, fine_tune: bool = False
) -> Decision:
    """Try the candidates for images; with ``closed_form`` only those without training.

    If the whole network will train anyway (``fine_tune``), the number of last blocks is not compared.
    """
    started = time.perf_counter()
    first = features_of_images(images, trunk.framing, trunk=trunk)
    recipe = load_recipe(first.recipe, [*overrides_of(first.settings), *place.overrides])
    splits = build_dataset(recipe.data, place.data)
    folds = folds_of(splits.train.labels, not images.splits_by_class, place.seed)
    if folds is None:
        return _untried(first, trunk, place)

    trains = not closed_form and trunk.last_blocks is not None
    if not closed_form and not trains:
        place.say(
            f"{trunk.name} has no blocks to train from kept activations: unwhitened and whitened frozen features are "
            "compared, and nothing is trained"
        )
    if fine_tune:
        trunk = replace(trunk, deeper=None)
    left = expected(images, trunk, splits, folds, len(sample_of(splits.train.labels, place.seed)), place, trains)
    if left is None:
        left = TimeLeft({})  # what cannot be read is told below
    else:
        place.say(expected_in_all(left))
    release_freed_memory()
    framing = choose_framing(images, trunk, splits, place)
    release_freed_memory()
    left.end(FRAMING)
    whole = features_of_images(images, framing, trunk=trunk)
    training = readable(whole, splits, splits.train, place)
    images = images.with_training_images(training)
    splits = replace(splits, train=training)
    folds = folds_of(training.labels, not images.splits_by_class, place.seed)
    if folds is None:
        return _untried(whole, trunk, place)

    computing = last_blocks(images, framing, trunk) if trains else whole
    place.say(f"computes features of {len(training):,} images{left}")
    features, relation = place.features_of(computing, splits, training, images.batches_of(images.training_classes))
    release_freed_memory()
    left.end(FEATURES)
    trials = Trials(place, splits, folds, features, relation)
    costly = [] if closed_form else trained(images, framing, trunk)
    best, scored = try_all(closed_forms(images, framing, trunk), costly, trials, place)
    left.end(TRIAL)
    if trunk.deeper is not None and best.candidate.title == LAST_BLOCKS:
        deeper = last_blocks(images, framing, trunk, trunk.deeper)
        best = try_deeper(deeper, best, scored, trials, place, few=_are_few(images))
        left.end(DEPTH)
    left.leave_out(DEPTH)
    left.trains(best.candidate.title)
    seconds = time.perf_counter() - started
    place.say(f"chooses {best.candidate.title}, {framing.title}: that took {seconds:.0f} s{left}")
    return Decision(best.candidate, f"{described(best, scored, folds)}; images: {framing.title}")


def choose_for_vectors(vectors: own_vectors.OwnVectors, place: Workplace, closed_form: bool = False) -> Decision:
    """Try the candidates for vectors; with ``closed_form`` only those without training."""
    started = time.perf_counter()
    first, *_ = free = own_vectors.closed_forms(vectors)
    recipe = load_recipe(first.recipe, [*overrides_of(first.settings), *place.overrides])
    splits = build_dataset(recipe.data, place.data)
    folds = folds_of(splits.train.labels, vectors.shares_classes, place.seed)
    if folds is None:
        place.say(
            "uses unwhitened vectors: a comparison needs four training classes with two vectors each, or four "
            "vectors of a tested class"
        )
        return Decision(first)
    features, relation = place.features_of(first, splits, splits.train, {})
    trials = Trials(place, splits, folds, features, relation)
    costly = [] if closed_form else own_vectors.trained(vectors)
    best, scored = try_all(free, costly, trials, place)
    place.say(f"chooses {best.candidate.title}: that took {time.perf_counter() - started:.0f} s")
    return Decision(best.candidate, described(best, scored, folds))


def _untried(frozen: Candidate, trunk: Trunk, place: Workplace) -> Decision:
    place.say(
        f"uses frozen features of {trunk.name}: a comparison needs four training classes with two images each, or four "
        f"images of a tested class; to train anyway: pml-ext train {PRETRAINED}"
    )
    return Decision(frozen)


# Ways to frame images


def choose_framing(images: OwnImages, trunk: Trunk, splits: DataSplits, place: Workplace) -> Framing:
    """Choose how the trunk sees images, by closed forms on a sample of the training images.

    Middle and whole images cost the same: the better is taken. So is the better of two sizes, up to 20,000 images; with
    more, the larger size must be significantly better.
    """
    compared = framings_to_compare(trunk.framing, trunk.smaller, place.set_keys, images.chosen_size, images.aspect)
    given = flat(tables_of(place.overrides))
    framings = [as_given(trunk.framed(compared.sides[0], squash), given) for squash in compared.squash]
    if len(framings) == 1 and len(compared.sides) == 1:
        return framings[0]

    sample = splits.train.subset(sample_of(splits.train.labels, place.seed))
    sample = readable(features_of_images(images, framings[0], trunk=trunk), splits, sample, place)
    place.say(f"compares ways to see images, by features of {len(sample)} of them (Recall@1 / MAP@R)")
    found = {framing: _scores_of_framing(images, trunk, framing, splits, sample, place) for framing in framings}
    few = _are_few(images)
    best = max(framings, key=lambda framing: _mean(found[framing]))
    for side in compared.sides[1:]:
        larger = replace(best, side=side)
        found[larger] = _scores_of_framing(images, trunk, larger, splits, sample, place)
        is_better = _mean(found[larger]) > _mean(found[best])
        if is_better and (few or is_significant(found[larger], found[best])):
            best = larger
    return best


def _are_few(images: OwnImages) -> bool:
    return images.training_images + images.tested_images <= MANY_IMAGES


def _mean(by_fold: Sequence[Scores]) -> float:
    return float(joined(by_fold).both.mean())


def sample_of(labels: Any, seed: int) -> Any:
    """Rows of a sample of about 300 items: eight of each of many classes, more of each of few."""
    labels = np.asarray(labels)
    generator = np.random.default_rng(seed)
    classes = generator.permutation(np.unique(labels))
    each = max(LEAST_OF_CLASS, -(-SAMPLE // len(classes)))
    rows: list[int] = []
    for label in classes:
        if len(rows) < SAMPLE:
            rows += generator.permutation(np.flatnonzero(labels == label))[:each].tolist()
    return np.sort(np.array(rows))


def _scores_of_framing(
    images: OwnImages, trunk: Trunk, framing: Framing, splits: DataSplits, sample: LabeledImages, place: Workplace
) -> list[Scores]:
    """The sample's scores by fold, of the best closed form."""
    batches = images.batches_of(len(set(sample.labels.tolist())))
    features, relation = place.features_of(features_of_images(images, framing, trunk=trunk), splits, sample, batches)
    folds = folds_of(sample.labels, not images.splits_by_class, place.seed)
    if folds is None:
        by_fold = [scores_of(features, torch.as_tensor(sample.labels))]
    else:
        trials = Trials(place, replace(splits, train=sample), folds, features, relation)
        by_fold = best_of(scored_closed_forms(closed_forms(images, framing, trunk), trials)).by_fold
    place.say(f"  {framing.title}: {joined(by_fold)}")
    return by_fold


def readable(candidate: Candidate, splits: DataSplits, images: LabeledImages, place: Workplace) -> LabeledImages:
    """Images without unreadable files, in memory if they fit."""
    recipe = load_recipe(candidate.recipe, [*overrides_of(candidate.settings), *place.overrides])
    preprocessing, _ = preprocessing_of(recipe, splits)
    _, plain = preprocessing.transforms()
    table = recipe.data
    found, _ = prepare(
        images,
        plain,
        cache=table.cache,
        skip_unreadable=table.unreadable == "skip",
        workers=table.workers,
        tell=place.say,
    )
    return found


# The trials


def try_all(
    free: Sequence[Candidate], costly: Sequence[Candidate], trials: Trials, place: Workplace
) -> tuple[Scored, list[Scored]]:
    """Return the candidate to deliver, and all candidates with their scores."""
    place.say(f"compares candidates (Recall@1 / MAP@R), {trials.folds}")
    scored = scored_closed_forms(free, trials)
    for each in scored:
        place.say(f"  {each.candidate.title}: {each.scores}")
    best = best_of(scored)
    for candidate in costly:
        tried = try_trained(candidate, best, trials, place)
        if not tried.by_fold:
            continue
        scored.append(tried)
        if is_significant(tried.by_fold, best.by_fold):
            best = tried
    return best, scored


def scored_closed_forms(free: Sequence[Candidate], trials: Trials) -> list[Scored]:
    """Scores of closed forms, without those that cannot be fitted."""
    scored = []
    for candidate in free:
        assert candidate.form is not None
        by_fold = trials.scores_of_closed_form(candidate.form)
        if by_fold is not None:
            scored.append(Scored(candidate, by_fold))
    return scored


def try_trained(candidate: Candidate, best: Scored, trials: Trials, place: Workplace) -> Scored:
    """Score a trained candidate in one fold, and in more while it leads without significance.

    The limit is a number of iterations: with a clock, a busy machine would choose differently. Without scores, the
    candidate cannot be tried.
    """
    before = trials.iterations
    by_fold: list[Scores] = []
    tried_folds = trials.folds.parts[: len(best.by_fold)]  # of what was trained before, those that it has
    for number, fold in enumerate(tried_folds, start=1):
        scores = trials.scores_of_trained(candidate, fold)
        if scores is None:
            break
        by_fold.append(scores)
        difference, p = gain(by_fold, best.by_fold)
        place.say(f"  {candidate.title}, fold {number}: {scores}; {best.candidate.title}: {best.by_fold[number - 1]}")
        with_another = (trials.iterations - before) * (number + 1) / number
        if difference <= 0 or p < SIGNIFICANT or with_another > candidate.most_iterations:
            break
    return Scored(candidate, by_fold)


def try_deeper(
    candidate: Candidate, best: Scored, scored: list[Scored], trials: Trials, place: Workplace, few: bool
) -> Scored:
    """Score a training of more blocks in the first fold, and return the better of it and ``best``.

    Unless there are ``few`` images, it must be significantly better, because it takes more than twice as long.
    """
    scores = trials.scores_of_trained(candidate, trials.folds.parts[0])
    if scores is None:
        return best
    tried = Scored(candidate, [scores])
    scored.append(tried)
    known = best.by_fold[:1]
    place.say(f"  {candidate.title}, fold 1: {scores}; {best.candidate.title}: {joined(known)}")
    is_better = _mean(tried.by_fold) > _mean(known)
    if is_better and (few or is_significant(tried.by_fold, known)):
        return tried
    return best


def described(best: Scored, scored: Sequence[Scored], folds: Folds) -> str:
    """A line with the scores of all candidates, which begins the report."""
    found = []
    for each in scored:
        text = f"{each.candidate.title} {each.scores}"
        if each.candidate.form is None and len(each.by_fold) < len(folds.parts):
            text += f" in {len(each.by_fold)} of the folds"
        found.append(text)
    rule = f"; what is trained is taken where it is significantly better in the same folds (p < {SIGNIFICANT})"
    return (
        f"{best.candidate.title.capitalize()}, chosen by the mean of Recall@1 and MAP@R in %, {folds}: "
        f"{', '.join(found)}{rule if len(found) > 3 else ''}"
    )

"""Checks of samplers: sizes of batches, state, and what many passes draw."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import one_line
from ...registry import settings_of
from ..batches import shuffle
from ..subject import BATCH_SIZE, CLASSES, SkipCheck, Subject, applies_to, set_seed, subject_of
from .reference import declared, variants

_PASSES = 4  # of check_sampler, so that what happens by chance happens


@applies_to("sampler")
def check_sampler(subject: Subject) -> None:
    """A pass gives as many indices as ``len`` and ``length_before_new_iter`` say, and no image twice in a batch."""
    sampler = subject.make()
    labels = _labels_of(subject, sampler)
    if iter(sampler) is sampler:
        raise AssertionError("it is its own iterator, so that two passes at once share one place; return a new one")
    batches: list[list[int]] = []
    for _ in range(_PASSES):
        drawn = _pass(sampler)
        if len(drawn) != len(sampler):
            raise AssertionError(f"a pass gives {len(drawn)} items, but len() says {len(sampler)}")
        if labels is not None and not {*_flat(drawn)} <= {*range(len(labels))}:
            raise AssertionError(f"an index is outside of 0 to {len(labels) - 1}")
        batches_of_pass = _batches(sampler, drawn, _batch_size(subject))
        _check_sizes_of_batches(sampler, batches_of_pass)
        batches += batches_of_pass
    if _gives_triplets(batches, labels):  # an image may be in several
        batches = _in_threes(batches)
    _check_no_image_twice(batches, labels)
    if subject.cls is None or "length_before_new_iter" not in settings_of(subject.cls):
        return
    length = max(24, 2 * _batch_size(subject))
    short = len(_pass(subject.make({**subject.settings, "length_before_new_iter": length})))
    long = len(_pass(subject.make({**subject.settings, "length_before_new_iter": 2 * length})))
    if short == long:
        found = f"{length} and {2 * length} both give {short} items"
        raise AssertionError(f"length_before_new_iter is accepted and ignored: {found}")


def _check_sizes_of_batches(sampler: Any, batches: list[list[int]], where: str = "") -> None:
    """Fail if a batch of a pass, but for the last one, has another number of images than ``batch_size``."""
    size = getattr(sampler, "batch_size", None)
    wrong = sorted({len(batch) for batch in batches[:-1]} - {size})
    if size and wrong:
        raise AssertionError(f"a batch has {wrong[0]} images, but batch_size is {size}{where}")


def _pass(sampler: Any) -> list[Any]:
    """Return the items of a pass; fail if it does not end."""
    most = 10 * len(sampler) + 1000
    drawn = list(itertools.islice(sampler, most))
    if len(drawn) == most:
        raise AssertionError(f"a pass goes on after {most} items, but len() says {len(sampler)}; end it there")
    return [np.asarray(item).tolist() for item in drawn]  # of arrays and tensors too, as a data loader takes them


def _flat(drawn: Iterable[Any]) -> list[int]:
    """Return the indices of a pass, whose items are indices or batches of them."""
    indices: list[int] = []
    for item in drawn:
        indices += map(int, np.atleast_1d(item))
    return indices


def _labels_of(subject: Subject, sampler: Any) -> Any:
    """Return the labels that a sampler has got, ``[N]``; None if nothing tells them."""
    if subject.cls is None:
        labels = getattr(sampler, "labels", None)
        if labels is None:
            return None
        labels = np.asarray(labels)
        lists_classes = len(np.unique(labels)) == len(labels)  # as PML's MPerClassSampler does
        return None if lists_classes else labels
    if "labels" not in settings_of(subject.cls):
        return None
    default = np.arange(CLASSES).repeat(4)
    return np.asarray(subject.settings.get("labels", default))


def _batch_size(subject: Subject) -> int:
    """Return the batch size that a sampler has got as a setting; 0 if it takes none."""
    if subject.cls is None or "batch_size" not in settings_of(subject.cls):
        return 0
    return int(subject.settings.get("batch_size") or BATCH_SIZE)


def _gives_triplets(batches: list[list[int]], labels: Any) -> bool:
    """Return whether all batches are sequences of anchor, positive, negative, for a miner of packaged triplets."""
    if labels is None or labels.ndim != 1:
        return False
    for batch in batches:
        anchors, positives, negatives = (labels[batch[start::3]] for start in range(3))
        if not len(anchors) == len(positives) == len(negatives) > 0:
            return False
        if not (anchors == positives).all() or (anchors == negatives).any():
            return False
    return True


def _in_threes(batches: list[list[int]]) -> list[list[int]]:
    triplets = []
    for batch in batches:
        triplets += [batch[start : start + 3] for start in range(0, len(batch), 3)]
    return triplets


def _check_no_image_twice(batches: list[list[int]], labels: Any, where: str = "") -> None:
    """Fail if a batch has an image twice, unless it has more images of the image's class than the class has."""
    sizes: dict[Any, int] = {}
    if labels is not None and labels.ndim == 1:
        sizes = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    for batch in batches:
        numbers, counts = np.unique(batch, return_counts=True)
        for image in numbers[counts > 1].tolist():
            if sizes and int((labels[batch] == labels[image]).sum()) > sizes[labels[image]]:
                continue
            raise AssertionError(f"an image comes twice in a batch, as a positive of itself at distance 0{where}")


def _batches(sampler: Any, drawn: list[Any], size: int = 0) -> list[list[int]]:
    """Return the batches of a pass; single indices are grouped into batches of ``batch_size``, or of ``size``."""
    if any(isinstance(item, list) for item in drawn):
        return drawn
    size = getattr(sampler, "batch_size", None) or size or 1
    return [drawn[start : start + size] for start in range(0, len(drawn), size)]


@applies_to("sampler")
def check_sampler_state(subject: Subject) -> None:
    """A resumed run must draw the same indices as an uninterrupted run, also where a pass takes few of many classes."""
    _check_sampler_state(subject, subject.settings)
    if subject.cls is None or "labels" not in settings_of(subject.cls) or "labels" in subject.settings:
        return
    many = {**subject.settings, "labels": np.arange(40).repeat(4)}
    try:
        subject.make(many)
    except Exception:  # it is made for other labels
        return
    _check_sampler_state(subject, many)


def _check_sampler_state(subject: Subject, settings: Mapping[str, Any]) -> None:
    from ...training.checkpoint import sampler_state, set_sampler_state  # imports much that other checks do not need

    one = subject.make(settings)
    other = subject.make(settings)
    _seed(0)
    _pass(one)
    has_state_dict = hasattr(one, "state_dict")
    given = sampler_state(one)
    state = copy.deepcopy(given)
    saved = pickle.dumps(given)
    _seed(1)
    expected = [_pass(one), _pass(one)]
    if has_state_dict and pickle.dumps(given) != saved:
        raise AssertionError("what state_dict() gave goes on changing with the sampler; return a copy")
    set_sampler_state(other, state)
    _seed(1)
    if [_pass(other), _pass(other)] != expected:
        remedy = "give it state_dict() and load_state_dict()"
        left_out = sorted(set(vars(one)) - set(state))
        if has_state_dict:
            remedy = "state_dict() misses something that changes, such as a queue or an order"
        elif left_out:
            remedy = f"a checkpoint cannot hold its {', '.join(left_out)}; {remedy}"
        raise AssertionError(f"after its state is put back it draws something else; {remedy}")


def _seed(number: int) -> None:
    set_seed(number)
    np.random.seed(number)


class _Shared(np.ndarray):  # type: ignore[type-arg]
    """An array that ``deepcopy`` returns itself, so that copied settings share it."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class _Samplers:
    """Samplers of a class, of labels in random order of six classes with odd names, most of them small.

    SkipCheck for a sampler that takes no labels, or is given its own.
    """

    def __init__(self, subject: Subject) -> None:
        self.settings = {} if subject.cls is None else settings_of(subject.cls)
        if "labels" not in self.settings or "labels" in subject.settings:
            raise SkipCheck("it is given its labels")
        self._subject = subject
        self.classes = np.array([100, -7, 10**6, 3, 41, 2])
        sizes = [9, 4, 5, 12, 1, 6]
        try:
            self.of(self.classes.repeat(sizes))
        except Exception:  # refuses large or small classes, by whatever error
            sizes = [4] * len(self.classes)
        self.labels = self.classes.repeat(sizes)[shuffle(sum(sizes), 0).numpy()].view(_Shared)

    def of(self, labels: Any, **settings: Any) -> Any:
        """Return the sampler of some labels."""
        return self._subject.make({**self._subject.settings, "labels": labels, **settings})

    def passes(self, count: int, generators: int = 0, **settings: Any) -> list[list[int]]:
        """Return the indices of so many passes, with the global generators seeded with a number."""
        _seed(generators)
        sampler = self.of(self.labels, **settings)
        return [_flat(_pass(sampler)) for _ in range(count)]

    def takes_many_classes(self) -> bool:
        """Return whether the class takes :data:`_MANY`; else it is made for other labels."""
        try:
            self.of(_MANY)
        except Exception:  # a constructor may raise anything
            return False
        return True

    def renamed(self, names: Any, in_order: bool = False) -> tuple[Any, Any]:
        """Return a sampler whose classes have other names, and its labels, sorted where ``in_order``."""
        labels = np.sort(self.labels) if in_order else self.labels
        _, numbers = np.unique(labels, return_inverse=True)
        return self.of(names[numbers]), names[numbers]

    def sizes_in_batches(self, names: Any, in_order: bool = False) -> set[tuple[int, ...]]:
        """Return the numbers of images per class that batches have, after the classes are :meth:`renamed`."""
        sampler, labels = self.renamed(names, in_order)
        sizes = set()
        for batch in _batches(sampler, _pass(sampler)):
            _, counts = np.unique(labels[batch], return_counts=True)
            sizes.add(tuple(sorted(counts.tolist())))
        return sizes


_NAMES = np.arange(6)  # of the classes of _Samplers, where they do not matter
_MANY = np.arange(41).repeat(4)  # labels of 41 classes, an odd number, of four images


@applies_to("sampler")
def check_sampler_keeps_labels(subject: Subject) -> None:
    """The labels belong to the data set: a sampler that sorts or renumbers them in place changes what others read."""
    samplers = _Samplers(subject)
    before = samplers.labels.copy()
    samplers.passes(_PASSES)
    if not (samplers.labels == before).all():
        raise AssertionError("it changes the labels that it is given in place; copy them first")


@applies_to("sampler")
def check_sampler_passes_differ(subject: Subject) -> None:
    """An epoch must not see the batches of the one before."""
    first, second = _Samplers(subject).passes(2)
    if len(first) > 1 and first == second:
        raise AssertionError("two passes in a row are equal: an epoch sees what the one before saw; go on drawing")


@applies_to("sampler")
def check_sampler_draws_all(subject: Subject) -> str:
    """Every class and every image is drawn at some time."""
    samplers = _Samplers(subject)
    passes = samplers.passes(100)
    seen = set().union(*passes)
    missing = set(samplers.classes.tolist()) - set(samplers.labels[list(seen)].tolist())
    if missing:
        raise AssertionError(f"100 passes never give the classes {sorted(missing)}")
    images = len(samplers.labels)
    if len(seen) < images:
        raise AssertionError(f"100 passes give {len(seen)} of {images} images alone")
    return f"all of {images} images in {len(passes)} passes"


@applies_to("sampler")
def check_sampler_draws_many_classes(subject: Subject) -> None:
    """Every class is drawn at some time, also where a batch has few of them."""
    samplers = _Samplers(subject)
    if not samplers.takes_many_classes():
        raise SkipCheck("it refuses 41 classes of four images")
    _seed(0)
    sampler = samplers.of(_MANY)
    missing = set(_MANY.tolist())
    for _ in range(200):
        missing -= set(_MANY[_flat(_pass(sampler))].tolist())
        if not missing:
            return
    shown = ", ".join(map(str, sorted(missing)[:3]))
    raise AssertionError(f"200 passes never give {len(missing)} of 41 classes, such as {shown}; draw among all of them")


@applies_to("sampler")
def check_sampler_small_classes(subject: Subject) -> None:
    """Batches have ``batch_size`` images, also where a class has fewer than a batch takes of it."""
    samplers = _Samplers(subject)
    for in_order in (False, True):
        sampler, _ = samplers.renamed(_NAMES, in_order)
        batches = _batches(sampler, _pass(sampler))
        _check_sizes_of_batches(sampler, batches, ", where a class has fewer images than a batch takes of it")


@applies_to("sampler")
def check_sampler_uneven_classes(subject: Subject) -> None:
    """A class whose size is no multiple of what a batch takes of it is not filled up with copies of an image."""
    samplers = _Samplers(subject)
    sampler = samplers.of(samplers.labels)
    batches: list[list[int]] = []
    for _ in range(_PASSES):
        batches += _batches(sampler, _pass(sampler), _batch_size(subject))
    labels = np.asarray(samplers.labels)
    if _gives_triplets(batches, labels):
        batches = _in_threes(batches)
    _check_no_image_twice(batches, labels, ", of a class that has enough of them")


@applies_to("sampler")
def check_sampler_class_names(subject: Subject) -> None:
    """Names and order of the classes do not matter: large numbers are no other classes, labels need not be sorted."""
    samplers = _Samplers(subject)
    plain = samplers.sizes_in_batches(_NAMES)
    wide = samplers.sizes_in_batches(_NAMES * 2**32)
    if len(plain) == 1 and wide != plain:
        raise AssertionError(f"names of classes 2**32 apart give batches of {wide} images per class, not {plain}")
    in_order = samplers.sizes_in_batches(_NAMES, in_order=True)
    if len(in_order) == 1 and plain != in_order:
        raise AssertionError(f"batches have {in_order} images per class, but {plain} where labels are not sorted")


@applies_to("sampler")
def check_sampler_gives_negatives(subject: Subject) -> None:
    """A batch of one class has no negative pair, from which most losses learn."""
    sizes = _Samplers(subject).sizes_in_batches(_NAMES, in_order=True)
    if all(len(counts) == 1 < counts[0] for counts in sizes):
        raise AssertionError("every batch has one class alone, and no negatives")


@applies_to("sampler")
def check_sampler_settings(subject: Subject) -> None:
    """A setting that changes nothing that is drawn was forgotten."""
    samplers = _Samplers(subject)
    if callable(getattr(subject.make(), "after_step", None)):
        raise SkipCheck("its settings may act in a run alone, after steps")
    unchanged = samplers.passes(1)
    for name in declared(subject):
        if name == "seed" or name in subject.without_effect:
            continue
        others = [each[name] for each in variants(subject, {**subject.settings, "labels": samplers.labels}, name)]
        if others and all(samplers.passes(1, **{name: value}) == unchanged for value in others):
            raise AssertionError(f"the setting {name} changes nothing that it draws ({others[-1]!r}, for example)")


@applies_to("sampler", slow=True)
def check_sampler_hashing(subject: Subject) -> None:
    """Generators in one state give the same indices in every process: texts hash to other numbers in each."""
    samplers = _Samplers(subject)
    if samplers.of(samplers.labels).__class__.__module__ == "__main__":
        raise SkipCheck("its class is in the script that runs, which another process would run again")
    labels = np.asarray(samplers.labels)
    try:
        given = pickle.dumps((subject.cls, {**subject.settings, "labels": labels}))
    except Exception as error:  # what it is built from may be anything
        raise SkipCheck(f"another process cannot get it: {one_line(error)}") from None
    drawn = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        code = f"from {__name__} import _print_passes; _print_passes()"
        done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, env=environment)
        if done.returncode:
            raise SkipCheck(f"another process cannot draw: {done.stderr.decode(errors='replace').strip()[-200:]}")
        drawn.append(done.stdout)
    if drawn[0] != drawn[1]:
        raise AssertionError(
            "processes with other PYTHONHASHSEED draw other indices: it goes through a set of texts; sort them first"
        )


def _print_passes() -> None:
    """Write what a sampler, whose class and settings are read from the standard input, draws in two passes."""
    cls, settings = pickle.loads(sys.stdin.buffer.read())
    subject = subject_of(cls)
    _seed(0)
    sampler = subject.make(settings)
    sys.stdout.write(repr([_pass(sampler), _pass(sampler)]))


@applies_to("sampler")
def check_sampler_seed(subject: Subject) -> str | None:
    """One ``seed`` gives the same indices whatever else the process draws, and another seed gives others."""
    samplers = _Samplers(subject)
    if "seed" not in samplers.settings:
        return "it takes no seed: a run's seed reaches it by the global generators alone"
    if samplers.passes(1, 0, seed=3) != samplers.passes(1, 1, seed=3):
        raise AssertionError("with one seed= it draws other indices where global generators differ")
    if samplers.passes(1, 0, seed=3) == samplers.passes(1, 0, seed=4):
        raise AssertionError("seed= is accepted and ignored: seeds 3 and 4 give the same indices")
    if not samplers.takes_many_classes():
        return None
    drawn = []
    for generators in (0, 1):
        _seed(generators)
        drawn.append(_pass(samplers.of(_MANY, seed=3)))
    if drawn[0] != drawn[1]:
        raise AssertionError("with one seed= it draws other indices of 41 classes where global generators differ")
    return None

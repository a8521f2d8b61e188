"""Checks of samplers: sizes of batches, state, and what many passes draw."""

import copy
import itertools
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...serialization import sampler_state, set_sampler_state
from ..batches import shuffle
from ..subject import BATCH_SIZE, CLASSES, Subject, applies_to, require, set_seed, skip_unless
from .reference import declared, variants

_PASSES = 4  # of check_sampler, so that what happens by chance happens
_NAMES = np.arange(6)  # of the classes of _Samplers, where they do not matter
_MANY = np.arange(41).repeat(4)  # labels of 41 classes, an odd number, of four images


def _seed(number: int) -> None:
    set_seed(number)
    np.random.seed(number)


def _pass(sampler: Any) -> list[Any]:
    most = 10 * len(sampler) + 1000
    drawn = list(itertools.islice(sampler, most))
    require(len(drawn) < most, f"a pass goes on after {most} items, but len() says {len(sampler)}; end it there")
    return [np.asarray(item).tolist() for item in drawn]  # of arrays and tensors too, as a data loader takes them


def _flat(drawn: Iterable[Any]) -> list[int]:
    indices: list[int] = []
    for item in drawn:
        indices += map(int, np.atleast_1d(item))
    return indices


def _batches(sampler: Any, drawn: list[Any], size: int = 0) -> list[list[int]]:
    if any(isinstance(item, list) for item in drawn):
        return drawn
    size = getattr(sampler, "batch_size", None) or size or 1
    return [drawn[start : start + size] for start in range(0, len(drawn), size)]


@applies_to("sampler")
def check_sampler(subject: Subject) -> None:
    """A pass has the length that it says, and no image twice in a batch.

    ``length_before_new_iter`` has an effect. Batches are full even if classes are small, and no image is repeated to
    fill up a class. Labels stay unchanged.
    """
    sampler = subject.make()
    require(
        iter(sampler) is not sampler,
        "it is its own iterator, so that two passes at once share one place; return a new one",
    )
    _check_passes(subject, sampler, _labels_of(subject, sampler))
    if "labels" in subject.accepted and "labels" not in subject.settings:
        samplers = _Samplers(subject)
        for in_order in (False, True):
            sampler, labels = samplers.renamed(_NAMES, in_order)
            before = labels.copy()
            _check_passes(subject, sampler, labels, ", where some classes are small")
            require((labels == before).all(), "it changes the labels that it is given in place; copy them first")
    if "length_before_new_iter" not in subject.accepted:
        return
    length = max(24, 2 * _batch_size(subject))
    short = len(_pass(subject.make({**subject.settings, "length_before_new_iter": length})))
    long = len(_pass(subject.make({**subject.settings, "length_before_new_iter": 2 * length})))
    require(
        short != long,
        f"length_before_new_iter is accepted and ignored: {length} and {2 * length} both give {short} items",
    )


def _check_passes(subject: Subject, sampler: Any, labels: Any, where: str = "") -> None:
    batches: list[list[int]] = []
    for _ in range(_PASSES):
        drawn = _pass(sampler)
        require(len(drawn) == len(sampler), f"a pass gives {len(drawn)} items, but len() says {len(sampler)}{where}")
        if labels is not None:
            in_range = {*_flat(drawn)} <= {*range(len(labels))}
            require(in_range, f"an index is outside of 0 to {len(labels) - 1}{where}")
        of_pass = _batches(sampler, drawn, _batch_size(subject))
        size = getattr(sampler, "batch_size", None)
        wrong = sorted({len(batch) for batch in of_pass[:-1]} - {size})
        if size and wrong:
            raise AssertionError(f"a batch has {wrong[0]} images, but batch_size is {size}{where}")
        batches += of_pass
    if _gives_triplets(batches, labels):  # an image may be in several
        batches = [batch[start : start + 3] for batch in batches for start in range(0, len(batch), 3)]
    _check_no_image_twice(batches, labels, where)


def _check_no_image_twice(batches: list[list[int]], labels: Any, where: str) -> None:
    sizes: dict[Any, int] = {}
    if labels is not None and labels.ndim == 1:
        sizes = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    for batch in batches:
        numbers, counts = np.unique(batch, return_counts=True)
        for image in numbers[counts > 1].tolist():
            require(
                sizes and int((labels[batch] == labels[image]).sum()) > sizes[labels[image]],
                f"an image comes twice in a batch, as a positive of itself at distance 0{where}",
            )


def _gives_triplets(batches: list[list[int]], labels: Any) -> bool:
    if labels is None or labels.ndim != 1:
        return False
    for batch in batches:
        anchors, positives, negatives = (labels[batch[start::3]] for start in range(3))
        if not len(anchors) == len(positives) == len(negatives) > 0:
            return False
        if not (anchors == positives).all() or (anchors == negatives).any():
            return False
    return True


def _labels_of(subject: Subject, sampler: Any) -> Any:
    if subject.cls is None:
        labels = getattr(sampler, "labels", None)
        if labels is None:
            return None
        labels = np.asarray(labels)
        lists_classes = len(np.unique(labels)) == len(labels)  # as PML's MPerClassSampler does
        return None if lists_classes else labels
    if "labels" not in subject.accepted:
        return None
    return np.asarray(subject.settings.get("labels", np.arange(CLASSES).repeat(4)))


def _batch_size(subject: Subject) -> int:
    if "batch_size" not in subject.accepted:
        return 0
    return int(subject.settings.get("batch_size") or BATCH_SIZE)


class _Samplers:
    """Samplers of a class, for shuffled labels of six classes, most of them small.

    Skips a sampler without labels, or with its own.
    """

    def __init__(self, subject: Subject) -> None:
        skip_unless("labels" in subject.accepted and "labels" not in subject.settings, "it is given its labels")
        self._subject = subject
        self.classes = np.array([100, -7, 10**6, 3, 41, 2])
        sizes = [9, 4, 5, 12, 1, 6]
        if not self.takes(self.classes.repeat(sizes)):  # it refuses large or small classes
            sizes = [4] * len(self.classes)
        self.labels = self.classes.repeat(sizes)[shuffle(sum(sizes), 0).numpy()]

    def of(self, labels: Any, **settings: Any) -> Any:
        return self._subject.make({**self._subject.settings, "labels": labels.view(_Shared), **settings})

    def takes(self, labels: Any) -> bool:
        try:
            self.of(labels)
        except Exception:  # a constructor may raise anything
            return False
        return True

    def passes(self, count: int, generators: int = 0, labels: Any = None, **settings: Any) -> list[list[int]]:
        """The indices of ``count`` passes; ``generators`` seeds the global generators."""
        _seed(generators)
        sampler = self.of(self.labels if labels is None else labels, **settings)
        return [_flat(_pass(sampler)) for _ in range(count)]

    def renamed(self, names: Any, in_order: bool = False) -> tuple[Any, Any]:
        labels = np.sort(self.labels) if in_order else self.labels
        _, numbers = np.unique(labels, return_inverse=True)
        labels = names[numbers]
        return self.of(labels), labels

    def sizes_in_batches(self, names: Any, in_order: bool = False) -> set[tuple[int, ...]]:
        sampler, labels = self.renamed(names, in_order)
        sizes = set()
        for batch in _batches(sampler, _pass(sampler)):
            _, counts = np.unique(labels[batch], return_counts=True)
            sizes.add(tuple(sorted(counts.tolist())))
        return sizes


class _Shared(np.ndarray):  # type: ignore[type-arg]
    """An array that ``deepcopy`` shares."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@applies_to("sampler")
def check_sampler_state(subject: Subject) -> None:
    """A resumed run must draw the same indices as an uninterrupted run."""
    _check_state(subject, subject.settings)
    if "labels" not in subject.accepted or "labels" in subject.settings:
        return
    if _Samplers(subject).takes(_MANY):
        _check_state(subject, {**subject.settings, "labels": _MANY})


def _check_state(subject: Subject, settings: Mapping[str, Any]) -> None:
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
    require(
        not has_state_dict or pickle.dumps(given) == saved,
        "what state_dict() gave goes on changing with the sampler; return a copy",
    )
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


@applies_to("sampler")
def check_sampler_draws_all(subject: Subject) -> str:
    """Many passes must draw every class and every image, and passes must differ."""
    samplers = _Samplers(subject)
    passes = samplers.passes(100)
    require(
        len(passes[0]) <= 1 or passes[0] != passes[1],
        "two passes in a row are equal: an epoch sees what the one before saw; go on drawing",
    )
    images = len(samplers.labels)
    _check_drawn(passes, samplers.labels)
    seen = set().union(*passes)
    require(len(seen) == images, f"100 passes give {len(seen)} of {images} images alone")
    if samplers.takes(_MANY):
        _check_drawn(samplers.passes(200, labels=_MANY), _MANY)
    return f"all of {images} images in {len(passes)} passes"


def _check_drawn(passes: list[list[int]], labels: Any) -> None:
    classes = np.unique(labels)
    missing = sorted(set(classes.tolist()) - set(labels[list(set().union(*passes))].tolist()))
    shown = ", ".join(map(str, missing[:3]))
    require(
        not missing,
        f"{len(passes)} passes never give {len(missing)} of {len(classes)} classes, such as {shown}; draw among all",
    )


@applies_to("sampler")
def check_sampler_class_names(subject: Subject) -> None:
    """Names and order of classes must not matter, and batches need several classes."""
    samplers = _Samplers(subject)
    plain = samplers.sizes_in_batches(_NAMES)
    wide = samplers.sizes_in_batches(_NAMES * 2**32)
    require(
        len(plain) != 1 or wide == plain,
        f"names of classes 2**32 apart give batches of {wide} images per class, not {plain}",
    )
    in_order = samplers.sizes_in_batches(_NAMES, in_order=True)
    require(
        len(in_order) != 1 or plain == in_order,
        f"batches have {in_order} images per class, but {plain} where labels are not sorted",
    )
    one_class = all(len(counts) == 1 < counts[0] for counts in in_order)
    require(not one_class, "every batch has one class alone, and no negatives")


@applies_to("sampler")
def check_sampler_settings(subject: Subject) -> None:
    """Every setting must change what is drawn."""
    samplers = _Samplers(subject)
    acts_after_steps = callable(getattr(subject.make(), "after_step", None))
    skip_unless(not acts_after_steps, "its settings may act in a run alone, after steps")
    unchanged = samplers.passes(1)
    for name in declared(subject):
        if name == "seed" or name in subject.without_effect:
            continue
        others = [each[name] for each in variants(subject, {**subject.settings, "labels": samplers.labels}, name)]
        if others and all(samplers.passes(1, **{name: value}) == unchanged for value in others):
            raise AssertionError(f"the setting {name} changes nothing that it draws ({others[-1]!r}, for example)")


@applies_to("sampler")
def check_sampler_seed(subject: Subject) -> str | None:
    """A ``seed`` must fix the indices, whatever else the process draws."""
    samplers = _Samplers(subject)
    if "seed" not in subject.accepted:
        return "it takes no seed: a run's seed reaches it by the global generators alone"
    for labels in (samplers.labels, _MANY):
        if not samplers.takes(labels):
            continue
        first = samplers.passes(1, 0, labels, seed=3)
        classes = len(np.unique(labels))
        require(
            samplers.passes(1, 1, labels, seed=3) == first,
            f"one seed= draws other indices of {classes} classes where global generators differ",
        )
        require(
            samplers.passes(1, 0, labels, seed=4) != first,
            "seed= is accepted and ignored: seeds 3 and 4 give the same indices",
        )
    return None

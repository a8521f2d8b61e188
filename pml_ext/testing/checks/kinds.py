"""Checks of single kinds: miners, distances, samplers, reducers."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...registry import settings_of
from ...registry.components import CAPABILITIES
from ..batches import CLOSE, batch_of, new_leaf, shuffle
from ..calling import call, error_location, is_random, needs, seeded
from ..comparing import all_close, check_tuple, close, gradient, sorted_rows, weighted
from ..subject import BATCH_SIZE, CLASSES, SkipCheck, Subject, applies_to, set_seed, with_noise
from .reference import declared, variants


@applies_to("loss", "miner", "regularizer", "distance")
def check_capabilities(subject: Subject) -> None:
    """Wrappers look up ``capabilities`` by name; a misspelled one is never found."""
    unknown = set(subject.capabilities) - CAPABILITIES
    if unknown:
        raise AssertionError(f"unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")


@applies_to("miner")
def check_mined_indices(subject: Subject) -> None:
    """Losses take three or four int64 index tensors; positives share the anchor's class, negatives do not."""
    tables = [subject.settings]
    for name in declared(subject):
        tables += itertools.islice(variants(subject, subject.settings, name), 2)
    for settings, case in itertools.product(tables, CLOSE):
        batch = batch_of(subject, **case)
        try:
            mined = call(subject.make(settings), batch)
        except (AssertionError, TypeError) as error:
            if not error_location(error).startswith("base_miner.py"):
                raise
            raise AssertionError("PML refuses what mine() returns; it wants three index tensors, or four") from error
        check_tuple(mined, batch.labels, batch.labels, twice=is_random(subject))


@applies_to("miner")
def check_mined_references(subject: Subject) -> None:
    """Partners must be rows of the references, in any order, even if there are as many references as images."""
    batch = batch_of(subject)
    try:
        call(subject.make(), batch, batch_of(subject, seed=1).embeddings, batch.labels)
    except Exception as error:
        needs(subject, "references")
        raise SkipCheck(f"it refuses references with {type(error).__name__}") from None
    for images in (5, 4):
        other = batch_of(subject, (CLASSES, images), seed=1)
        mined = []
        for seed in (3, 4):
            order = shuffle(len(other.labels), seed)
            references = other.ordered(order)
            found = seeded(subject.make(), batch, references.embeddings, references.labels)
            where = f", among {len(order)} references; partners are rows of ref_emb, with ref_labels"
            check_tuple(found, batch.labels, references.labels, where, is_random(subject))
            in_batch_order = list(found)
            partners = (1, 2) if len(found) == 3 else (1, 3)
            for partner in partners:
                in_batch_order[partner] = order[found[partner]]
            mined.append(sorted_rows(tuple(in_batch_order)))
        if not all_close(mined[:1], mined[1:]) and not is_random(subject):
            text = f"the order of {len(order)} references changes what is mined from {len(batch.labels)} images"
            raise AssertionError(f"{text}; mine among ref_emb, and say has_references=True to pair_masks")


def _of_raw_embeddings(subject: Subject) -> Any:
    """Return the distance that does not normalize, or None if its class refuses that or does so anyway."""
    if subject.cls is None or not getattr(subject.make(), "normalize_embeddings", False):
        return None
    try:
        return subject.make({**subject.settings, "normalize_embeddings": False})
    except (AssertionError, TypeError, ValueError):
        return None


def _check_matrix(distance: Any, x: Tensor, y: Tensor, where: str = "") -> None:
    """Fail if a matrix of two sets has another shape than ``[B, R]`` or other entries than the form for pairs."""
    matrix = distance(x, y)
    for rows, columns in ((x, y), (x[:1], y), (x, y[:1]), (x[:1], y[:1])):
        shape = distance(rows, columns).shape
        if shape != (len(rows), len(columns)):
            raise AssertionError(f"of {len(rows)} and {len(columns)} embeddings the matrix is {tuple(shape)}")

    count = min(len(x), len(y))
    normalized_x = distance.maybe_normalize(x[:count])
    normalized_y = distance.maybe_normalize(y[:count])
    pairs = distance.pairwise_distance(normalized_x, normalized_y)
    every_pair = [distance.pairwise_distance(normalized_x, normalized_y.roll(by, 0)) for by in range(count)]
    rows = torch.arange(count)
    for by, values in enumerate(every_pair):
        text = f"pairwise_distance(x, y) differs from the matrix of x and y, whose rows are those of x{where}"
        close(values, matrix[rows, (rows - by) % count], text, 1e-5, 1e-7)
    alone = torch.cat([distance(row[None], y) for row in x])
    text = f"pairwise_distance differs from the diagonal of the matrix{where}"
    close(pairs, matrix.diagonal()[:count], text, 1e-5, 1e-7)
    close(alone, matrix, f"the distance of two embeddings depends on others of the batch{where}", 1e-5, 1e-7)


@applies_to("distance")
def check_distance(subject: Subject) -> None:
    """A distance gives ``[B, R]``, each entry that of its form for pairs; equal points are nearest.

    It need not be symmetric, but the matrix of a set with itself must be that of two equal sets.
    """
    x = batch_of(subject).embeddings
    distance = with_noise(subject.make().eval())
    close(distance(x), distance(x, x.clone()), "of one set it gives another matrix than of two equal ones", 1e-5, 1e-7)
    for images in (2, 4, 5):
        y = batch_of(subject, (subject.classes, images), seed=1).embeddings
        _check_matrix(distance, x, y)
    raw = _of_raw_embeddings(subject)
    if raw is not None:
        _check_matrix(with_noise(raw.eval()), x, y, ", with normalize_embeddings=False")
    if not gradient(weighted(distance(x, y)), y).any():
        raise AssertionError("the references get no gradient; detach none of the two")
    twice = new_leaf(torch.cat([x[:4], x[:4]]))
    matrix = distance(twice)
    if not matrix.requires_grad or not gradient(matrix.sum(), twice).isfinite().all():
        raise AssertionError("the gradient between equal points is missing or not finite; roots want eps below them")
    equal_points = matrix.diagonal(4)
    others = matrix[~torch.eye(4, dtype=torch.bool).repeat(2, 2)]
    if distance.is_inverted:
        near = equal_points.min() >= others.max() - 1e-6
    else:
        near = equal_points.max() <= others.min() + 1e-6
    if not near and not [*distance.parameters()]:  # a distance with parameters learns what is near
        raise AssertionError("equal points are not the nearest; where large is near, pass is_inverted=True to super()")


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
    for batch in batches:
        if len(set(batch)) != len(batch) and not _must_repeat(batch, labels):
            raise AssertionError("an image comes twice in a batch, as a positive of itself at distance 0")
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


def _must_repeat(batch: list[int], labels: Any) -> bool:
    """Return whether a batch has more images of some class than the class has, so that one must come twice."""
    if labels is None or labels.ndim != 1:
        return False
    sizes = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    drawn = zip(*np.unique(labels[batch], return_counts=True), strict=True)
    return any(count > sizes[label] for label, count in drawn)


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


@applies_to("sampler")
def check_sampler_in_the_long_run(subject: Subject) -> str:
    """Every class and image is drawn, two passes differ, seed and settings have an effect, labels stay unchanged."""
    known = {} if subject.cls is None else settings_of(subject.cls)
    if "labels" not in known or "labels" in subject.settings:
        raise SkipCheck("it is given its labels")
    names = np.array([100, -7, 10**6, 3, 41, 2])
    sizes = [9, 4, 5, 12, 1, 6]

    def made(labels: Any, **more: Any) -> Any:
        return subject.make({**subject.settings, "labels": labels, **more})

    try:
        made(names.repeat(sizes))
    except ValueError:  # refuses large or small classes
        sizes = [4] * len(names)
    labels = names.repeat(sizes)[shuffle(sum(sizes), 0).numpy()].view(_Shared)
    before = labels.copy()

    def passes(count: int, generators: int, **more: Any) -> list[Any]:
        _seed(generators)
        sampler = made(labels, **more)
        return [_flat(_pass(sampler)) for _ in range(count)]

    def sizes_in_batches(names: Any, in_order: bool = False) -> set[tuple[int, ...]]:
        """Return the numbers of images per class that batches have, after the classes are renamed."""
        old_names = np.sort(labels) if in_order else labels
        _, numbers = np.unique(old_names, return_inverse=True)
        renamed = names[numbers]
        sampler = made(renamed)
        items = []
        for item in _pass(sampler):
            items.append(item if isinstance(item, list) else int(item))
        sizes_of_batches = set()
        batches = _batches(sampler, items)
        _check_sizes_of_batches(sampler, batches, ", where a class has fewer images than a batch takes of it")
        for batch in batches:
            _, counts = np.unique(renamed[batch], return_counts=True)
            sizes_of_batches.add(tuple(sorted(counts.tolist())))
        return sizes_of_batches

    drawn = passes(100, 0)
    if not (labels == before).all():
        raise AssertionError("it changes the labels that it is given in place; copy them first")
    if len(drawn[0]) > 1 and drawn[0] == drawn[1]:
        raise AssertionError("two passes in a row are equal: an epoch sees what the one before saw; go on drawing")
    seen = set().union(*drawn)
    missing = set(names.tolist()) - set(labels[list(seen)].tolist())
    if missing:
        raise AssertionError(f"100 passes never give the classes {sorted(missing)}")
    if len(seen) < len(labels):
        raise AssertionError(f"100 passes give {len(seen)} of {len(labels)} images alone")
    _check_many_classes(subject)
    plain = sizes_in_batches(np.arange(len(names)))
    wide = sizes_in_batches(np.arange(len(names)) * 2**32)
    if len(plain) == 1 and wide != plain:
        raise AssertionError(f"names of classes 2**32 apart give batches of {wide} images per class, not {plain}")
    in_order = sizes_in_batches(np.arange(len(names)), in_order=True)
    if all(len(counts) == 1 < counts[0] for counts in in_order):
        raise AssertionError("every batch has one class alone, and no negatives")
    if len(in_order) == 1 and plain != in_order:
        raise AssertionError(f"batches have {in_order} images per class, but {plain} where labels are not sorted")
    acting = not callable(getattr(subject.make(), "after_step", None))  # others act only in a run, after its steps
    varied = []
    if acting:
        varied = [name for name in declared(subject) if name not in {"seed", *subject.without_effect}]
    for name in varied:
        others = [each[name] for each in variants(subject, {**subject.settings, "labels": labels}, name)]
        if others and all(passes(1, 0, **{name: value}) == passes(1, 0) for value in others):
            raise AssertionError(f"the setting {name} changes nothing that it draws ({others[-1]!r}, for example)")
    if "seed" not in known:
        return "it takes no seed: a run's seed reaches it by the global generators alone"
    if passes(1, 0, seed=3) != passes(1, 1, seed=3):
        raise AssertionError("with one seed= it draws other indices where global generators differ")
    if passes(1, 0, seed=3) == passes(1, 0, seed=4):
        raise AssertionError("seed= is accepted and ignored: seeds 3 and 4 give the same indices")
    return f"all of {len(labels)} images in {len(drawn)} passes"


def _check_many_classes(subject: Subject) -> None:
    """Fail if a sampler never draws some of the classes where a batch has few of them."""
    labels = np.arange(40).repeat(4)
    settings = {**subject.settings, "labels": labels}
    try:
        sampler = subject.make(settings)
    except Exception:  # it is made for other labels
        return
    if subject.cls is not None and "seed" in settings_of(subject.cls):
        drawn = []
        for generators in (0, 1):
            _seed(generators)
            drawn.append(_flat(_pass(subject.make({**settings, "seed": 3}))))
        if drawn[0] != drawn[1]:
            raise AssertionError("with one seed= it draws other indices of 40 classes where global generators differ")
    _seed(0)
    missing = set(range(40))
    for _ in range(200):
        missing -= set(labels[_flat(_pass(sampler))].tolist())
        if not missing:
            return
    shown = ", ".join(map(str, sorted(missing)[:3]))
    raise AssertionError(f"200 passes never give {len(missing)} of 40 classes, such as {shown}; draw among all of them")


@applies_to("reducer")
def check_reducer(subject: Subject) -> str | None:
    """A reducer returns a scalar for elements, pairs and triplets, and 0 with a gradient if there are no values.

    It may refuse some of them with NotImplementedError.
    """
    batch = batch_of(subject)
    reducer = subject.make()
    rows = torch.arange(8)
    losses = batch.embeddings[:8].square().sum(1)
    refused = []
    kinds = {"element": 1, "pos_pair": 2, "neg_pair": 2, "triplet": 3}
    for kind, count in kinds.items():
        indices = rows if count == 1 else (rows,) * count
        info = {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": 8}}
        try:
            value = reducer(info, batch.embeddings, batch.labels)
        except NotImplementedError:
            refused.append(kind)
            continue
        if not isinstance(value, Tensor) or value.ndim != 0:
            raise AssertionError(f"{kind} values give {value!r}, not a scalar tensor")
    none = {"loss": {"losses": 0, "indices": None, "reduction_type": "already_reduced"}}
    value = reducer(none, batch.embeddings, batch.labels)
    if not isinstance(value, Tensor) or value != 0 or not value.requires_grad:
        raise AssertionError(f"of no values, 0 that is reduced already, it gives {value!r}, not 0 with a gradient")
    if not refused:
        return None
    if len(refused) == len(kinds):
        raise AssertionError("it refuses elements, pairs and triplets, each with NotImplementedError")
    return f"it refuses values of {', '.join(refused)}"

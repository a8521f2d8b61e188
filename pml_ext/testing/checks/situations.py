"""Situations without effect: earlier calls, modes, threads, names, order, sizes; and arguments with an effect."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ... import pml
from ...registry import settings_of
from ..batches import CLOSE, Batch, batch_of, new_leaf, shuffle
from ..calling import (
    CountedOperations,
    call,
    call_forms,
    error_summary,
    is_random,
    needs,
    outcome,
    reordered,
    reseeded_generators,
    seeded,
    used,
)
from ..comparing import all_close, close
from ..subject import SkipCheck, Subject, applies_to, names_classes, takes_labels, with_noise

CALLED = ("loss", "regularizer", "miner", "distance", "reducer")  # kinds that are called with a batch
_DIMENSIONS = 600
_IMAGES = (65, 182, 1025)
_IMAGES_WITH_GRADIENT = 182  # the most with which gradients are compared too
_COPIES = (43, 257, 2731)  # of references: beyond int8, beyond what float16 counts, beyond int16
_LARGE = 64  # entries of the largest tensor per entry of the matrix, above which larger batches are left out
_OPERATIONS = 5_000  # for a batch, above which no larger one is tried
_GLOBALS: dict[str, Callable[[], Any]] = {  # settings of the process, and how each is read
    "the default dtype": torch.get_default_dtype,
    "the number of threads": torch.get_num_threads,
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "the precision of matrix products": torch.get_float32_matmul_precision,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
    "warnings.filters": lambda: [*warnings.filters],
    "the level of logging": lambda: logging.root.level,
    "numpy.geterr()": np.geterr,
    "os.environ": lambda: dict(os.environ),
}
_WITHOUT_GRADIENT: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
    "embeddings without gradient": contextlib.nullcontext,
}


def settings_of_process() -> dict[str, Any]:
    """Return the process settings that a component must not change, except those that pytest changes in each test."""
    return {name: get() for name, get in _GLOBALS.items() if name not in ("warnings.filters", "os.environ")}


@applies_to(*CALLED, "sampler")
def check_globals_unchanged(subject: Subject) -> None:
    """A component must not change process settings, such as the default dtype, or seed global generators."""
    threads = torch.get_num_threads()
    warnings.filterwarnings("ignore", "one more filter, so that another first one shows")
    torch.set_num_threads(threads + 1)  # so that 1 shows
    before = {name: get() for name, get in _GLOBALS.items()} | subject.findings.settings_of_process
    before["the number of threads"] = threads + 1
    try:
        reseeded = reseeded_generators(lambda: _use(subject))
        after = {name: get() for name, get in _GLOBALS.items()}
    finally:
        torch.set_num_threads(threads)
    if changed := [name for name, value in before.items() if after[name] != value]:
        raise AssertionError(f"it changes {', '.join(changed)} for the whole process; put back what was there")
    if reseeded:
        raise AssertionError(f"it seeds the global generator of {' and '.join(reseeded)}; draw from one of its own")


def _use(subject: Subject) -> None:
    """Build a component and call it, with its gradient if it has one."""
    component = subject.make()
    if subject.kind == "sampler":
        list(component)
        return
    value = call(component, batch_of(subject))
    if isinstance(value, Tensor) and value.requires_grad:
        value.sum().backward()  # type: ignore[no-untyped-call]


@applies_to(*CALLED)
def check_calls_are_independent(subject: Subject) -> None:
    """Results must not depend on earlier calls, unless "state" is declared: a resumed run has new objects."""
    if "state" in subject.capabilities:
        raise SkipCheck("it declares state")
    batch = batch_of(subject, seed=0)
    other = batch_of(subject, seed=1)
    third = batch_of(subject, seed=3)
    small = batch_of(subject, (2, 2), seed=2)
    small.embeddings.requires_grad_(False)
    used = subject.make()
    given = call_forms(subject, batch, other)
    expected = {form: outcome(subject.make(), batch, **named) for form, named in given.items()}

    def compare(when: str, taken: Batch, named: dict[str, Any], wanted: list[Tensor]) -> None:
        text = f"{when} a batch gives another result than of a new object: something is kept between calls; keep none"
        close(outcome(used, taken, **named), wanted, f'{text}, or declare "state" in capabilities', 1e-9, 1e-9)

    def earlier() -> Iterator[tuple[str, Batch]]:
        yield "in the first call", batch
        for form, named in call_forms(subject, third, Batch(batch.embeddings, third.labels)).items():
            same_length = Batch(third.embeddings, third.labels[shuffle(len(third.labels), 1)])
            wanted = outcome(subject.make(), same_length, **named)
            compare(f"after one of the same length{form}", same_length, named, wanted)
            yield f"after another batch of the same length{form}", batch
        with contextlib.suppress(Exception):  # an empty batch may be refused
            call(used, Batch(new_leaf(batch.embeddings[:0]), batch.labels[:0]))
        yield "after an empty batch", batch
        for _ in range(100):
            call(used, small)
        yield "after 100 smaller batches", batch
        used.eval()
        with torch.no_grad():
            call(used, other)
        used.train()
        yield "after a call in eval()", batch
        moved = Batch(new_leaf(other.embeddings), batch.labels)
        call(used, moved)
        with torch.no_grad():
            moved.embeddings.copy_(batch.embeddings)
        yield "after the tensor that it was called with has got other values", moved

    for when, taken in earlier():
        for form, named in given.items():
            compare(when, taken, named, expected[form])


@applies_to(*CALLED)
def check_modes(subject: Subject) -> None:
    """``eval()``, ``no_grad()``, ``inference_mode()`` and threads must not change a result; "state": threads only."""
    exact = not ("state" in subject.capabilities or is_random(subject))
    batch = batch_of(subject)
    other = batch_of(subject, (4, 3), seed=1)
    plain = Batch(batch.embeddings.detach(), batch.labels)
    for form, named in call_forms(subject, batch, other).items():
        detached = tree_map_only(Tensor, Tensor.detach, named)
        expected = outcome(subject.make(), batch, **named)
        found = dict[str, list[Tensor]]()
        try:
            with ThreadPoolExecutor(1) as pool:
                found["another thread"] = pool.submit(outcome, subject.make(), batch, **named).result()
        except Exception as error:
            raise AssertionError(f"another thread{form}: {error_summary(error)}") from error
        if exact:
            for where, mode in _WITHOUT_GRADIENT.items():
                with mode():
                    found[where] = outcome(subject.make(), plain, **detached)[:1]
        if "state" not in subject.capabilities:
            found["eval()"] = outcome(subject.make().eval(), batch, **named)
        for where, actual in found.items():
            text = f"{where} changes the result{form}; where that is meant, name check_modes in expected_failed_checks"
            close(actual, expected[: len(actual)], text, 1e-9, 1e-9)


def _names(classes: int) -> dict[str, Tensor]:
    """Return other labels of the classes ``[C]``, negative ones first: code that indexes by labels stops there."""
    numbers = torch.arange(classes)
    return {
        "below 0": numbers - classes,
        "in another order": shuffle(classes, 1),
        "among 0 to 999": shuffle(1000, 6)[:classes],
        "256 apart": 256 * numbers,
        "65,536 apart": 65536 * numbers,
        "10**9 apart": 10**9 * numbers,
        "neighbors above 2**24": numbers + 2**24,
        "2**32 apart": 2**40 + numbers * 2**32,
        "neighbors above 2**53": numbers + 2**53,
        "in int32": numbers.int(),
        "in uint8": (255 - numbers).to(torch.uint8),
    }


@applies_to("loss", "regularizer", "miner")
def check_names_of_classes(subject: Subject) -> str | None:
    """Labels are names: 7 and 3 mean the same as 0 and 1; with a row per class, where the rows are renumbered alike."""
    component = subject.make()
    rows = subject.has_class_rows
    if not takes_labels(component) or is_random(subject):
        raise SkipCheck("it takes no labels, or its values are random")
    batch = batch_of(subject)
    other = batch_of(subject, (subject.classes, 3), seed=1)
    for each in (batch, other):  # wrong pairs show in the value
        each.embeddings.requires_grad_(False)
    for form, named in call_forms(subject, batch, other).items():
        expected = outcome(subject.make(), batch, **named)
        for what, names in _names(subject.classes).items():
            if rows and not what.startswith("in int32"):
                continue
            if "ref_labels" in named:
                named = {**named, "ref_labels": names[other.labels]}
            try:
                actual = outcome(subject.make(), Batch(batch.embeddings, names[batch.labels]), **named)
            except IndexError:
                if [*component.parameters(), *component.buffers()]:
                    raise SkipCheck("it has rows per class, which labels are numbers of") from None
                raise
            except (RuntimeError, TypeError) as error:
                if names.dtype == torch.long:
                    raise AssertionError(f"names of classes {what} stop it{form}: {error}") from error
                continue  # another dtype may be refused
            text = f"names of classes {what} change the result{form}; compare labels as they come"
            close(actual, expected, text, 1e-7, 1e-7)
    if rows:
        _check_renumbered_rows(subject)
        return "classes are numbered otherwise, rows and labels alike"
    return None


def _check_renumbered_rows(subject: Subject) -> None:
    """Fail if the result is another where the classes, their rows and their labels, are in reverse order."""
    batch = batch_of(subject, (2, 3))
    batch.embeddings.requires_grad_(False)
    if subject.size == subject.classes:
        raise SkipCheck("embeddings are as long as there are classes, so that rows of classes are not known")
    component = with_noise(subject.make())
    renumbered = with_noise(subject.make())
    for module in renumbered.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.data.copy_(_rows_reversed(subject, tensor.data))
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):  # such as a weight for each class
                setattr(module, name, _rows_reversed(subject, value))
    expected = outcome(component, batch)[:1]
    actual = outcome(renumbered, Batch(batch.embeddings, subject.classes - 1 - batch.labels))[:1]
    text = (
        f"classes that are numbered otherwise, rows and labels alike, change the {subject.kind}; take the row of each "
        "label, and the number of classes from num_classes, not from the batch"
    )
    close(actual, expected, text, 1e-7, 1e-7)


def _rows_reversed(subject: Subject, tensor: Tensor) -> Tensor:
    """Return a tensor with its rows of classes in reverse order, along each axis that has one for each class.

    Integers stay: they may be the labels of the rows.
    """
    if not tensor.is_floating_point():
        return tensor
    for axis, length in enumerate(tensor.shape):
        if length == subject.classes:
            tensor = tensor.flip(axis)
        elif length and length % subject.classes == 0 and names_classes(subject.make()):
            raise SkipCheck("it may have several rows per class, whose order is its own")
    return tensor


@applies_to(*CALLED)
def check_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch must not matter; code that is right only for sorted labels fails with other samplers."""
    if subject.kind == "loss":
        needs(subject, "labels")
    needs(subject, fixed=True)
    for shape in ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5)):
        batch = batch_of(subject, shape)
        expected = reordered(subject.make(), batch, torch.arange(len(batch.labels)))
        for seed in (0, 1):
            actual = reordered(subject.make(), batch, shuffle(len(batch.labels), seed))
            if subject.kind == "miner" and _ties(subject.make(), batch, actual[0], expected[0]):
                continue
            what = f"({shape[0]} classes x {shape[1]})"
            close(actual[:1], expected[:1], f"the order of the batch changes the {subject.kind} {what}", 1e-7, 1e-7)
            close(actual, expected, f"the order of the batch changes the gradient {what}", atol=1e-6)
    if "state" in subject.capabilities:
        _check_order_of_state(subject)


def _check_order_of_state(subject: Subject) -> None:
    """Fail if the order of a batch changes what a stateful component makes of the next batch."""
    batch = batch_of(subject, (2, 3))
    outcomes = []
    for order in (torch.arange(len(batch.labels)), torch.arange(len(batch.labels)).flip(0)):
        component = subject.make()
        seeded(component, batch.ordered(order))
        outcomes.append(outcome(component, batch_of(subject, (3, 3), seed=1)))
    text = (
        f"the order of a batch changes the {subject.kind} of the next batch: its state does not treat the images of a "
        "class alike. state[labels] = x keeps one image of each class; average them, with index_add_"
    )
    close(outcomes[0], outcomes[1], text, 1e-7, 1e-7)


def _ties(component: Any, batch: Batch, found: Tensor, wanted: Tensor) -> bool:
    """Return whether two choices of a miner differ in pairs or triplets of equal distances alone."""
    if found.shape != wanted.shape:
        return False
    if torch.equal(found, wanted):
        return True
    pairs = len(call(component, batch)) == 4
    with torch.no_grad():
        matrix = component.distance(batch.embeddings)

    def distances(rows: Tensor) -> Tensor:
        """Return the distances of each row's pairs, rows in order of them."""
        first = matrix[rows[:, 0], rows[:, 1]]
        if pairs:  # the third column says whether a pair is positive
            second = rows[:, 2].to(first.dtype)
        else:
            second = matrix[rows[:, 0], rows[:, 2]]
        order = first.argsort()
        order = order[second[order].argsort(stable=True)]
        return torch.stack([second[order], first[order]], 1)

    return all_close([distances(found)], [distances(wanted)])


@applies_to(*CALLED)
def check_sizes(subject: Subject) -> str:
    """65, 182 and 1,025 images, as cost allows, give the same in any order, with any labels: counters may overflow."""
    try:
        check_order_does_not_matter(subject)
    except Exception:
        raise SkipCheck("see check_order_does_not_matter") from None
    names = not subject.has_class_rows
    for images in _IMAGES:
        generator = torch.Generator().manual_seed(images)
        numbers = torch.randint(images // 4, (images,), generator=generator)
        points = batch_of(subject, numbers % subject.classes, seed=images)
        batch = Batch(points.embeddings, numbers if names else points.labels)
        if images > _IMAGES_WITH_GRADIENT:
            batch.embeddings.requires_grad_(False)
        with CountedOperations() as counted:
            expected = reordered(subject.make(), batch, torch.arange(images))
        other = torch.randint(2**40, (images,), generator=generator)
        renamed = batch
        text = f"{images} images in another order"
        if names:
            renamed = Batch(batch.embeddings, other[numbers])
            text += " under other names"
        text += " give another result"
        actual = reordered(subject.make(), renamed, shuffle(images, 1))
        if subject.kind != "miner" or not _ties(subject.make(), batch, actual[0], expected[0]):
            close(actual, expected, text, atol=1e-6)
        if counted.count > _OPERATIONS or counted.largest > _LARGE * images * max(images, subject.size):
            break
    return f"up to {images} images"


@applies_to("loss")
def check_many_references(subject: Subject) -> str:
    """With each reference given k times, a value that grows as ``a + b k`` for small k must do so for large k."""
    needs(subject, "labels", "references", fixed=True)
    batch = batch_of(subject, (3, 1))
    other = batch_of(subject, (subject.classes, 3), seed=1)

    def value(copies: int) -> float:
        given = {"ref_emb": other.embeddings.detach().repeat(copies, 1), "ref_labels": other.labels.repeat(copies)}
        return float(seeded(subject.make(), batch, **given))

    one, two, four = map(value, (1, 2, 4))
    slope = two - one
    if not np.isclose(four, one + 3 * slope, rtol=1e-9, atol=1e-12):
        raise SkipCheck("its value does not grow linearly with the number of references")
    for copies in _COPIES:
        wanted = one + (copies - 1) * slope
        with CountedOperations() as counted:
            actual = value(copies)
        if not np.isclose(actual, wanted, rtol=1e-6, atol=1e-9):
            text = f"each of {len(other.labels)} references {copies} times gives {actual:.8g} instead of {wanted:.8g}"
            raise AssertionError(f"{text}, as fewer do: references are left out, or counts overflow")
        if counted.largest > _LARGE * len(batch.labels) * copies * len(other.labels):
            break
    return f"up to {copies * len(other.labels):,} references"


@applies_to("loss", "regularizer", "miner", "distance")
def check_dimensions(subject: Subject) -> None:
    """All of 600 coordinates count: each gets a gradient, and flipping signs in half of the images has an effect."""
    component = subject.make()
    settings = dict(subject.settings)
    if subject.cls is not None and "embedding_size" in settings_of(subject.cls):
        settings["embedding_size"] = _DIMENSIONS
    elif hasattr(component, "embedding_size") or [*component.parameters()]:
        raise SkipCheck("it is made for one length of embeddings")
    wide = dataclasses.replace(subject, size=_DIMENSIONS)
    unchanged = []
    for case in CLOSE:
        batch = batch_of(wide, **case)
        turned = Batch(new_leaf(batch.embeddings), batch.labels)
        with torch.no_grad():
            turned.embeddings[::2, 64:] *= -1
        results = []
        for each in (batch, turned):  # after calls, and with parameters that are not 0, where it may start
            results.append(outcome(with_noise(used(subject.make(settings), wide)), each))
        if subject.kind != "miner":
            counts = (results[1][1] != 0).any(0)
            if not counts.any():
                continue
            if not counts.all():
                raise AssertionError(f"{(~counts).sum()} of {_DIMENSIONS} coordinates get no gradient, others do")
        beginnings = []
        for value, *slopes in results:
            beginnings.append([value, *(slope[:, :64] for slope in slopes[:1])])
        if not all_close(beginnings[0], beginnings[1]):
            return
        unchanged.append(case)
    if unchanged and subject.kind != "regularizer":
        raise AssertionError("other coordinates from 65 on change nothing: they are left out")


@applies_to("loss", "regularizer", "distance", "reducer")
def check_nan_shows(subject: Subject) -> str | None:
    """A NaN or infinite coordinate must show in the value, as an error, or in the sum if the reducer drops it."""
    batch = batch_of(subject)
    other = batch_of(subject, seed=1)
    note = None

    def shows(component: Any, taken: Batch, named: dict[str, Any]) -> bool:
        try:
            return not seeded(component, taken, **named).isfinite().all()
        except Exception:  # shows it, too
            return True

    summed = subject.make()
    for module in summed.modules():
        if hasattr(module, "set_reducer"):
            module.set_reducer(pml.reducers.SumReducer())
    bad_numbers = [torch.nan, torch.inf]
    if subject.kind == "reducer":  # a quantile may be finite if some of its values are not
        bad_numbers = [torch.nan]
    for bad, (form, named) in itertools.product(bad_numbers, call_forms(subject, batch, other).items()):
        x = batch.embeddings.detach().clone()
        y = other.embeddings.detach().clone()
        x[batch.labels == 0, 2] = y[other.labels == 0, 2] = bad
        given = {"an embedding": (Batch(x.requires_grad_(), batch.labels), named)}
        if "ref_emb" in named:
            given["a reference"] = (batch, {**named, "ref_emb": y})
        for where, arguments in given.items():
            if shows(subject.make(), *arguments):
                continue
            if not shows(copy.deepcopy(summed), *arguments):
                raise AssertionError(f"{bad} in {where}{form} gives a value as if nothing were wrong; let it show")
            note = f"{bad} in {where}{form} is dropped by the reducer"
    return note


def _adds_up(subject: Subject, batch: Batch) -> bool:
    """Return whether a regularizer's value is a mean or a sum over parts of a batch; a covariance, say, is neither."""
    half = len(batch.labels) // 2
    values = []
    for rows in (slice(None), slice(half), slice(half, None)):
        values.append(call(subject.make(), Batch(new_leaf(batch.embeddings[rows]), batch.labels[rows])).detach())
    whole, first, second = values
    share = half / len(batch.labels)
    return all_close([whole], [first + second]) or all_close([whole], [share * first + (1 - share) * second])


@applies_to("loss", "miner", "regularizer")
def check_arguments(subject: Subject) -> None:
    """PML's own arguments do what PML says: ``distance``, ``reducer``, ``embedding_regularizer``, ``collect_stats``."""
    needs(subject, repeatable=True)
    if subject.cls is None:
        raise SkipCheck("it is an instance; arguments are given to a class")
    batch = batch_of(subject)
    known = {*settings_of(subject.cls)}
    plain = outcome(subject.make(), batch)

    def with_(**more: Any) -> Any:
        """Return an object with further arguments, or None where they are refused."""
        if not {*more} <= known:
            return None
        with contextlib.suppress(TypeError, ValueError, AssertionError):
            return subject.make({**subject.settings, **more})

    if recording := with_(collect_stats=True):
        close(outcome(recording, batch), plain, "collect_stats=True changes the result; detach what is recorded")
    regularizer = pml.regularizers.LpRegularizer()
    bare = with_(embedding_regularizer=None)
    plain = outcome(bare, batch) if bare else plain
    regularized = with_(embedding_regularizer=regularizer, embedding_reg_weight=0.5)
    if regularized and subject.kind == "loss":
        text = "embedding_regularizer=, embedding_reg_weight=0.5 gives another loss; hand both to super().__init__()"
        expected = plain[0] + 0.5 * regularizer(batch.embeddings).detach()
        close(outcome(regularized, batch)[0], expected, text, atol=1e-6)
    sums = with_(reducer=pml.reducers.SumReducer())
    means = with_(reducer=pml.reducers.MeanReducer())
    if sums and subject.kind == "loss":
        component = subject.make()
        component.set_reducer(pml.reducers.SumReducer())
        text = "reducer=SumReducer() is not what set_reducer(SumReducer()) gives"
        close(outcome(sums, batch), outcome(component, batch), text, atol=1e-6)
    ignored = sums and subject.kind == "regularizer" and all_close(outcome(sums, batch), outcome(means, batch))
    if ignored and _adds_up(subject, batch):
        text = "reducer= changes nothing: SumReducer() and MeanReducer() give the same"
        raise AssertionError(f"{text}, a mean or sum over images; return one value per image: per_anchor(values)")
    if subject.kind == "regularizer" or not {"references", "indices_tuple"} & subject.capabilities:
        return

    def changes(component: Any, given: Batch) -> bool:
        try:
            return not all_close(outcome(subject.make(), given), outcome(component, given))
        except Exception:  # it uses the distance
            return True

    own = subject.make().distance
    others = {
        "another distance gives the same; use self.distance": _stretching(own),
        "near and far exchanged give the same; look at self.distance.is_inverted": _turned(own),
    }
    for what, distance in others.items():
        component = with_(distance=distance)
        if component and not any(changes(component, batch_of(subject, **case)) for case in CLOSE):
            raise AssertionError(f"distance= changes nothing: {what}")


def _turned(distance: Any) -> Any:
    """Return a distance with the same values and ``is_inverted`` negated: near and far are exchanged."""

    class Turned(pml.BaseDistance):
        compute_mat = staticmethod(distance.compute_mat)
        pairwise_distance = staticmethod(distance.pairwise_distance)

    settings = {name: getattr(distance, name) for name in ("normalize_embeddings", "p", "power")}
    return Turned(is_inverted=not distance.is_inverted, **settings)


def _stretching(distance: Any) -> Any:
    """Return a copy of a distance that stretches coordinates first."""

    def stretched(x: Tensor | None) -> Any:
        if x is None:
            return x
        return x * torch.linspace(0.2, 3, x.shape[1], dtype=x.dtype)

    class Stretching(type(distance)):  # type: ignore[misc]
        def compute_mat(self, query_emb: Tensor, ref_emb: Tensor | None) -> Any:
            query = stretched(query_emb)
            if ref_emb is query_emb:
                return super().compute_mat(query, query)
            return super().compute_mat(query, stretched(ref_emb))

        def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Any:
            return super().pairwise_distance(stretched(query_emb), stretched(ref_emb))

    other = copy.deepcopy(distance)
    other.__class__ = Stretching
    return other

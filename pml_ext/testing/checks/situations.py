"""Situations that must not matter, and arguments that must have an effect."""

import contextlib
import copy
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
)
from ..comparing import all_close, close
from ..subject import SkipCheck, Subject, applies_to, require, skip_unless, takes_labels

CALLED = ("loss", "regularizer", "miner", "distance", "reducer")  # kinds that are called with a batch
_IMAGES = (65, 182, 1025)
_IMAGES_WITH_GRADIENT = 182  # the most with which gradients are compared too
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
    """The process settings to compare, except those that pytest changes."""
    return {name: get() for name, get in _GLOBALS.items() if name not in ("warnings.filters", "os.environ")}


@applies_to(*CALLED, "sampler")
def check_globals_unchanged(subject: Subject) -> None:
    """A component must not change process settings or seed global generators."""
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
    changed = [name for name, value in before.items() if after[name] != value]
    require(not changed, f"it changes {', '.join(changed)} for the whole process; put back what was there")
    require(not reseeded, f"it seeds the global generator of {' and '.join(reseeded)}; draw from one of its own")


def _use(subject: Subject) -> None:
    subject.build()
    component = subject.make()
    if subject.kind == "sampler":
        list(component)
        return
    value = call(component, batch_of(subject))
    if isinstance(value, Tensor) and value.requires_grad:
        value.sum().backward()  # type: ignore[no-untyped-call]


@applies_to(*CALLED)
def check_calls_are_independent(subject: Subject) -> None:
    """Results must not depend on earlier calls, unless "state" is declared."""
    skip_unless("state" not in subject.capabilities, "it declares state")
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
        call(used, small)
        yield "after a smaller batch", batch
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
    """``eval()``, ``no_grad()``, ``inference_mode()`` and threads must not change a result.

    With "state", only threads are checked.
    """
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
    """Other labels of the classes, negative ones first, where indexing by labels stops."""
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
def check_names_of_classes(subject: Subject) -> None:
    """Labels are names: 7 and 3 mean the same as 0 and 1, in any integer dtype."""
    component = subject.make()
    skip_unless(takes_labels(component) and not is_random(subject), "it takes no labels, or its values are random")
    batch = batch_of(subject)
    other = batch_of(subject, (subject.classes, 3), seed=1)
    for each in (batch, other):  # wrong pairs show in the value
        each.embeddings.requires_grad_(False)
    for form, named in call_forms(subject, batch, other).items():
        expected = outcome(subject.make(), batch, **named)
        for what, names in _names(subject.classes).items():
            if subject.has_class_rows and not what.startswith("in int32"):
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


@applies_to(*CALLED)
def check_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch must not matter, because samplers draw different orders."""
    if subject.kind == "loss":
        needs(subject, "labels")
    needs(subject, fixed=True)
    for shape in ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5)):
        batch = batch_of(subject, shape)
        expected = reordered(subject.make(), batch, torch.arange(len(batch.labels)))
        for seed in (0, 1):
            where = f" ({shape[0]} classes x {shape[1]})"
            _compare_orders(subject, batch, expected, batch, shuffle(len(batch.labels), seed), where)
    if "state" in subject.capabilities:
        _check_order_of_state(subject)


def _compare_orders(
    subject: Subject, batch: Batch, expected: list[Tensor], same: Batch, order: Tensor, where: str
) -> None:
    actual = reordered(subject.make(), same, order)
    if subject.kind == "miner" and _ties(subject.make(), batch, actual[0], expected[0]):
        return
    close(actual[:1], expected[:1], f"the order of the batch changes the {subject.kind}{where}", 1e-7, 1e-7)
    close(actual, expected, f"the order of the batch changes the gradient{where}", atol=1e-6)


@applies_to(*CALLED)
def check_sizes(subject: Subject) -> str:
    """Batches of 65, 182 and 1,025 images must give the same in any order; counters overflow."""
    try:
        check_order_does_not_matter(subject)
    except Exception:
        raise SkipCheck("see check_order_does_not_matter") from None
    for images in _IMAGES:
        generator = torch.Generator().manual_seed(images)
        classes = torch.randint(images // 4, (images,), generator=generator)
        points = batch_of(subject, classes % subject.classes, seed=images)
        names = torch.randint(2**40, (images,), generator=generator)
        batch = same = points
        if not subject.has_class_rows:
            batch = Batch(points.embeddings, classes)
            same = Batch(points.embeddings, names[classes])
        points.embeddings.requires_grad_(images <= _IMAGES_WITH_GRADIENT)
        with CountedOperations() as counted:
            expected = reordered(subject.make(), batch, torch.arange(images))
        _compare_orders(subject, batch, expected, same, shuffle(images, 1), f", or its labels, with {images} images")
        if counted.count > _OPERATIONS or counted.largest > _LARGE * images * max(images, subject.size):
            break
    return f"up to {images} images"


def _check_order_of_state(subject: Subject) -> None:
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
    """Whether two choices of a miner differ only in pairs or triplets of equal distance."""
    if found.shape != wanted.shape:
        return False
    if torch.equal(found, wanted):
        return True
    pairs = len(call(component, batch)) == 4
    with torch.no_grad():
        matrix = component.distance(batch.embeddings)

    def distances(rows: Tensor) -> Tensor:
        first = matrix[rows[:, 0], rows[:, 1]]
        if pairs:  # the third column says whether a pair is positive
            second = rows[:, 2].to(first.dtype)
        else:
            second = matrix[rows[:, 0], rows[:, 2]]
        order = first.argsort()
        order = order[second[order].argsort(stable=True)]
        return torch.stack([second[order], first[order]], 1)

    return all_close([distances(found)], [distances(wanted)])


@applies_to("loss", "regularizer", "distance", "reducer")
def check_nan_shows(subject: Subject) -> str | None:
    """A NaN or infinite coordinate must show in the value, or in the sum."""
    batch = batch_of(subject)
    other = batch_of(subject, seed=1)

    def shows(component: Any, taken: Batch, named: dict[str, Any]) -> bool:
        try:
            return not seeded(component, taken, **named).isfinite().all()
        except Exception:  # shows it, too
            return True

    summed = subject.make()
    for module in summed.modules():
        if hasattr(module, "set_reducer"):
            module.set_reducer(pml.reducers.SumReducer())
    # A quantile of values, some of them infinite, may be finite.
    bad_numbers = [torch.nan] if subject.kind == "reducer" else [torch.nan, torch.inf]
    one = torch.arange(subject.size) == 2  # coordinate
    note = None
    for bad, (form, named) in itertools.product(bad_numbers, call_forms(subject, batch, other).items()):
        x, y = (
            torch.where((each.labels == 0)[:, None] & one, bad, each.embeddings).detach() for each in (batch, other)
        )
        given = {"an embedding": (Batch(x.requires_grad_(), batch.labels), named)}
        if "ref_emb" in named:
            given["a reference"] = (batch, {**named, "ref_emb": y})
        for where, arguments in given.items():
            if shows(subject.make(), *arguments):
                continue
            require(
                shows(copy.deepcopy(summed), *arguments),
                f"{bad} in {where}{form} gives a value as if nothing were wrong; let it show",
            )
            note = f"{bad} in {where}{form} is dropped by the reducer"
    return note


@applies_to("loss", "miner", "regularizer")
def check_arguments(subject: Subject) -> None:
    """PML's arguments must have their effect: ``distance``, ``reducer``, regularizers, stats."""
    needs(subject, repeatable=True)
    skip_unless(subject.cls, "it is an instance; arguments are given to a class")
    batch = batch_of(subject)

    def with_(**more: Any) -> Any:
        if not {*more} <= {*subject.accepted}:
            return None
        with contextlib.suppress(TypeError, ValueError, AssertionError):
            return subject.make({**subject.settings, **more})

    if recording := with_(collect_stats=True):
        text = "collect_stats=True changes the result; detach what is recorded"
        close(outcome(recording, batch), outcome(subject.make(), batch), text)
    if subject.kind == "loss":
        _check_parts(subject, batch, with_)
    if subject.kind != "regularizer" and {"references", "indices_tuple"} & subject.capabilities:
        _check_distance(subject, with_)


def _check_parts(subject: Subject, batch: Batch, with_: Callable[..., Any]) -> None:
    regularizer = pml.regularizers.LpRegularizer()
    bare = with_(embedding_regularizer=None) or subject.make()
    if regularized := with_(embedding_regularizer=regularizer, embedding_reg_weight=0.5):
        text = "embedding_regularizer=, embedding_reg_weight=0.5 gives another loss; hand both to super().__init__()"
        expected = outcome(bare, batch)[0] + 0.5 * regularizer(batch.embeddings).detach()
        close(outcome(regularized, batch)[0], expected, text, atol=1e-6)
    if sums := with_(reducer=pml.reducers.SumReducer()):
        component = subject.make()
        component.set_reducer(pml.reducers.SumReducer())
        text = "reducer=SumReducer() is not what set_reducer(SumReducer()) gives"
        close(outcome(sums, batch), outcome(component, batch), text, atol=1e-6)


def _check_distance(subject: Subject, with_: Callable[..., Any]) -> None:
    distance = subject.make().distance

    class Turned(pml.BaseDistance):
        compute_mat = staticmethod(distance.compute_mat)
        pairwise_distance = staticmethod(distance.pairwise_distance)

    settings = {name: getattr(distance, name) for name in ("normalize_embeddings", "p", "power")}
    component = with_(distance=Turned(is_inverted=not distance.is_inverted, **settings))

    def changes(given: Batch) -> bool:
        try:
            return not all_close(outcome(subject.make(), given), outcome(component, given))
        except Exception:  # it uses the distance
            return True

    require(
        not component or any(changes(batch_of(subject, **case)) for case in CLOSE),
        "distance= changes nothing: near and far exchanged give the same; use self.distance and its is_inverted",
    )

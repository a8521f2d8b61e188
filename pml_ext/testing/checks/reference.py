"""Checks against a slow reference of the equation, and of the effect of every setting."""

import dataclasses
import functools
import inspect
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import pml, registry
from ...errors import ConfigError
from ..batches import Batch, batch_of, new_leaf, sample_pairs, shuffle
from ..calling import call_forms, is_random, outcome, seeded, takes_references
from ..comparing import all_close, close, difference_of_rows, gradients, sorted_rows, weighted
from ..subject import (
    INHERITED,
    SkipCheck,
    Subject,
    applies_to,
    label_arguments,
    require,
    set_seed,
    skip_unless,
    takes_labels,
    with_noise,
)

Values = Mapping[str, Any]
KINDS = ("loss", "miner", "regularizer", "distance")  # that can be compared with a reference
# Tolerances, absolute and relative: torch's pairwise_distance, which PML uses, adds 1e-6 to each coordinate.
_VALUES = 1e-6
_GRADIENTS = 1e-5
_OF_DISTANCES = {"normalize_embeddings", "p", "power"}  # of PML's base class, which a reference need not take
_MINED = "the set of triplets {(anchor, positive, negative), ...}, or two sets of pairs, (positive ones, negative ones)"


@dataclasses.dataclass(frozen=True)
class _Case:
    """A batch with the optional arguments of a call."""

    name: str
    batch: Batch
    named: Values = dataclasses.field(default_factory=dict)
    smooth: bool = True  # compare gradients and mined indices too, which are not unique where values tie


def _cases(subject: Subject, wanted: Sequence[str] = ()) -> list[_Case]:
    def batch(*sizes: int, spread: float = 1.2, seed: int = 0) -> Batch:
        known = sizes[: subject.classes]
        labels = torch.repeat_interleave(torch.arange(len(known)), torch.tensor(known))
        return batch_of(subject, labels[shuffle(len(labels), len(labels))], seed=seed, spread=spread)

    plain = batch(3, 3, 3)
    ragged = batch(1, 4, 2, 3, seed=1)
    twice = batch(3, 3, 2, seed=3)
    with torch.no_grad():
        ragged.embeddings *= torch.linspace(0.5, 3, len(ragged.labels), dtype=torch.float64)[:, None]
        one, other = torch.where(twice.labels == twice.labels[0])[0][:2]
        twice.embeddings[one] = twice.embeddings[other]
    cases = [
        _Case("overlapping classes", plain),
        _Case("classes of 1 to 4", ragged),
        _Case("tight classes", batch(3, 3, 2, spread=0.02, seed=2)),
        _Case("a batch with an image twice", twice, smooth=False),
        _Case("a positive and a negative that are equal", _with_ties(batch(3, 3, 2)), smooth=False),
        _Case("one class", batch(4, seed=4)),
        _Case("a batch without positives", batch(1, 1, 1, 1, seed=5)),
    ]
    if "indices_tuple" in wanted:
        generator = torch.Generator().manual_seed(6)
        pairs = pml.get_all_pairs_indices(plain.labels)
        some = (*sample_pairs(pairs[:2], 0.5, generator), *sample_pairs(pairs[2:], 0.5, generator))
        triplets = sample_pairs(pml.get_all_triplets_indices(plain.labels), 0.4, generator)
        mined = {"pairs of a miner": some, "triplets of a miner": triplets}
        cases[1:1] = [_Case(name, plain, {"indices_tuple": indices}) for name, indices in mined.items()]
    if "ref_emb" in wanted:
        references = batch(2, 3, 1, seed=7)
        named = {"ref_emb": references.embeddings}
        if takes_labels(subject.make()):
            named["ref_labels"] = references.labels
        cases.insert(1, _Case("references", plain, named))
    return cases


def _with_ties(batch: Batch) -> Batch:
    """A batch in which similarities of positives and negatives are exactly equal.

    Four coordinates of 1 or -1 make sums without rounding errors. The first image of each class also belongs to the
    next class.
    """
    size = batch.embeddings.shape[1]
    generator = torch.Generator().manual_seed(8)
    signs = 2.0 * torch.randint(2, (len(batch.labels), 4), generator=generator) - 1
    points = torch.zeros_like(batch.embeddings)
    points[:, : min(4, size)] = signs[:, : min(4, size)].to(points)
    classes = sorted(set(batch.labels.tolist()))
    firsts = [int(torch.where(batch.labels == label)[0][0]) for label in classes]
    lasts = [int(torch.where(batch.labels == label)[0][-1]) for label in classes]
    for number, first in enumerate(firsts):
        points[lasts[(number + 1) % len(classes)]] = points[first]
    return Batch(new_leaf(points), batch.labels)


def _takes(subject: Subject, name: str) -> bool:
    assert subject.reference is not None
    parameters = inspect.signature(subject.reference).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@applies_to(*registry.KINDS)
def check_reference(subject: Subject) -> str:
    """Value and gradients, or mined indices, must equal a slow reference's."""
    skip_unless(subject.kind in KINDS, f"a {subject.kind} is not compared; {', '.join(KINDS)} are")
    grid = subject.grid or [{}]
    wants = _wanted_by_reference(subject)
    compare = _compare
    cases = _cases(subject, wants)
    if subject.kind == "miner":
        require(
            not is_random(subject),
            "it draws at random, while the reference gives one answer: after torch.manual_seed(0) and (1) it mines "
            "others. Draw nothing, or leave out reference=",
        )
        compare = _compare_mined
        cases = [case for case in cases if case.smooth]
    compared = 0
    tables = list(grid)
    for name in declared(subject):
        if subject.kind == "distance" and name in _OF_DISTANCES and not _takes(subject, name):
            continue
        choices = len(_choices(subject, name)) or 1
        tables += itertools.islice(variants(subject, grid[0], name), choices)
    left_out: dict[str, None] = {}
    for settings in tables:
        component = subject.make(settings)
        if "component" in wants:
            component = with_noise(component)
        for case in cases:
            try:
                compare(subject, component, settings, case, wants)
                compared += 1
            except SkipCheck as reason:
                left_out[f"{_shown(settings)}: {reason}"] = None
    require(compared, f"the reference compared nothing: {'; '.join(left_out)}")
    text = f"equal in {compared} comparisons"
    if left_out:
        text += f"; left out by the reference: {'; '.join(left_out)}"
    return text


@applies_to(*KINDS)
def check_settings(subject: Subject) -> str:
    """Each setting must change the value or a gradient, or it misleads its user.

    Without ``reference=`` or ``settings=``, a setting that may need another one passes.
    """
    grid = subject.grid or [{}]
    skip_unless(subject.cls, "it is an instance; only settings of a class can be varied")
    varied = {name: bool([*variants(subject, grid[0], name)]) for name in declared(subject)}

    for name in varied:
        listed = [table[name] for table in grid if name in table]
        pairs = []
        for base in grid:
            pairs += [(base, other) for other in variants(subject, base, name, listed)]
        try:
            changed = next((pair for pair in pairs if _differ(subject, *pair)), None)
        except Exception as error:
            if subject.grid is not None:
                raise
            raise SkipCheck(f"it stops with {type(error).__name__}, see check_degenerate_batches") from None
        if subject.grid is None and not changed and not all(varied.values()):
            continue
        require(pairs, f"the setting {name} is not varied; give values: settings={{{name!r}: [...]}}")
        tried = f"{len(pairs)} pairs tried, the last with {_shown(pairs[-1][1])}"
        require(
            changed or name in subject.without_effect,
            f"the setting {name} changes neither value nor gradient ({tried}); use it, give the settings that it "
            "needs in one table of settings=, or name it in without_effect=",
        )
        if changed:
            require(
                not _zero_is_default(subject, grid[0], name),
                f"{name}=0 gives what the default does; `{name} or default` takes 0 for nothing given",
            )
            shown = " and ".join(map(_shown, changed))
            require(name not in subject.without_effect, f"{name} is said to be without effect, but {shown} differ")
    return f"varied: {', '.join(varied)}"


def _zero_is_default(subject: Subject, settings: Values, name: str) -> bool:
    """Whether 0 gives the result of the setting's value, but half of that value does not."""
    value = settings.get(name, declared(subject)[name])
    if not isinstance(value, float) or value == 0:
        return False
    own = {**settings, name: value}
    try:
        if _differ(subject, {**settings, name: 0.0}, own, 0):
            return False
        return _differ(subject, {**settings, name: value / 2}, own, 0)
    except Exception:  # 0 may be refused
        return False


def declared(subject: Subject) -> dict[str, Any]:
    """The defaults of a class's own settings; none for an instance.

    A setting that the class passes to its base, as in ``super().__init__(alpha=3.0)``, is not its own.
    """
    defaults: dict[str, Any] = {}
    for name, parameter in subject.accepted.items():
        is_own = parameter.default is not parameter.empty and name not in INHERITED
        if is_own and not _is_passed_on(subject, name, parameter.default):
            defaults[name] = parameter.default
    return defaults


def _is_passed_on(subject: Subject, name: str, default: Any) -> bool:
    """Whether a class gives its base class a setting itself, so that nobody else can."""
    assert subject.cls is not None
    constructor: Any = vars(subject.cls).get("__init__")
    if constructor is None or name in inspect.signature(constructor).parameters:
        return False
    try:
        subject.make({**subject.settings, name: default})
    except TypeError as error:
        return "multiple values for keyword argument" in str(error)
    except Exception:  # a constructor may raise anything
        return False
    return False


def variants(subject: Subject, settings: Values, name: str, listed: Sequence[Any] = ()) -> Iterator[dict[str, Any]]:
    """Yield settings with another accepted value of one: a listed value, or one nearby."""
    value = settings.get(name, declared(subject)[name])
    near = _choices(subject, name)
    if not near and isinstance(value, bool):
        near = [not value]
    elif not near and isinstance(value, int):
        near = [value + 1, value - 1, 2 * value]
    elif not near and isinstance(value, float):
        near = [value / 2, 2 * value, value + 0.25, value - 0.25, value / 4 + 0.1]
    for candidate in (*listed, *near):
        other = {**settings, name: candidate}
        try:
            subject.make(other)
        except (TypeError, ValueError, ArithmeticError):
            continue
        if repr(candidate) != repr(value):
            yield other


def _choices(subject: Subject, name: str) -> list[Any]:
    annotation = subject.accepted[name].annotation
    parts = [annotation]
    if typing.get_origin(annotation) is not typing.Literal:
        parts = list(typing.get_args(annotation))
    choices: list[Any] = []
    for part in parts:
        if typing.get_origin(part) is typing.Literal:
            choices += typing.get_args(part)
    return choices


def other_settings(subject: Subject) -> dict[str, Any]:
    """Settings of a class, each changed to a nearby value if accepted."""
    settings = dict(subject.settings)
    for name in declared(subject):
        settings = next(variants(subject, settings, name), settings)
    return settings


def _differ(subject: Subject, one: Values, other: Values, rtol: float = 1e-9) -> bool:
    for number in range(len(_cases_of_settings(subject))):
        if not all_close(_outcome(subject, one, number), _outcome(subject, other, number), rtol):
            return True
    return False


@functools.lru_cache(16)
def _cases_of_settings(subject: Subject) -> list[_Case]:
    wanted = ["ref_emb"] if "references" in subject.capabilities or takes_references(subject) else []
    return _cases(subject, wanted)


def _outcome(subject: Subject, settings: Values, number: int) -> list[Tensor]:
    outcomes = subject.findings.outcomes
    key = f"{number} of {sorted(settings.items())}"
    if key not in outcomes:
        case = _cases_of_settings(subject)[number]
        component = with_noise(subject.make(settings))
        found = outcome(component, case.batch, **case.named)
        if "state" in subject.capabilities:  # a setting of a schedule or a moving average acts from the second call
            found += outcome(component, case.batch, **case.named)
        outcomes[key] = found
    return outcomes[key]


def _wanted_by_reference(subject: Subject) -> list[str]:
    if subject.reference is None:
        raise SkipCheck("no reference= was given")
    batch = batch_of(subject)
    known = {"component"}.union(*call_forms(subject, batch, batch).values())
    return [name for name in inspect.signature(subject.reference).parameters if name in known]


def _slow_result(subject: Subject, component: Any, settings: Values, case: _Case, wants: Sequence[str]) -> Any:
    assert subject.reference is not None
    unknown = [name for name in settings if not _takes(subject, name)]
    if unknown:
        raise ConfigError(
            f"the reference takes no setting {unknown[0]!r}; let it take every varied setting, and raise SkipCheck "
            "for a value that it does not support"
        )
    set_seed(0)
    labels = label_arguments(component, case.batch.labels)
    known = {**case.named, "component": component}
    further = {name: known.get(name) for name in wants}
    return subject.reference(case.batch.embeddings, *labels, **settings, **further)


def _compare_mined(subject: Subject, component: Any, settings: Values, case: _Case, wants: Sequence[str]) -> None:
    slow = _slow_result(subject, component, settings, case, wants)
    wanted: set[tuple[int, ...]] = set()
    try:
        if isinstance(slow, tuple) and len(slow) == 2:
            for sign, pairs in enumerate(slow):
                wanted |= {(int(anchor), int(partner), sign) for anchor, partner in pairs}
            count = 4
        else:
            wanted |= {(int(anchor), int(positive), int(negative)) for anchor, positive, negative in slow}
            count = 3
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a miner's reference returns {_MINED}; got {str(slow)[:80]}") from error
    mined = seeded(component, case.batch, **case.named)
    if wanted and len(mined) != count:
        forms = {3: "triplets", 4: "pairs"}
        raise AssertionError(f"it gives {forms[len(mined)]}, the reference {forms[count]}")
    found = set(map(tuple, sorted_rows(mined).tolist()))
    if found != wanted:
        form = "anchor, positive, negative"
        if count == 4:
            form = "anchor, partner, and 0 for a positive or 1 for a negative"
        text = f"with {_shown(settings)}, {case.name}, it mines different pairs from the reference"
        raise AssertionError(f"{text}: {difference_of_rows(found, wanted)} ({form})")


def _compare(subject: Subject, component: Any, settings: Values, case: _Case, wants: Sequence[str]) -> None:
    where = f"with {_shown(settings)}, {case.name}"
    leaves = {"the embeddings": case.batch.embeddings}
    if "ref_emb" in case.named:
        leaves["the references"] = case.named["ref_emb"]
    if "component" in wants:
        leaves |= dict(component.named_parameters())
    slow = _slow_result(subject, component, settings, case, wants)
    wanted = torch.as_tensor(slow, dtype=torch.float64)
    actual = seeded(component, case.batch, **case.named)
    close(actual, wanted, f"{where}: the value differs from the reference's", _VALUES, _VALUES)
    if not case.smooth or not wanted.requires_grad:
        return
    slopes = [gradients(weighted(value), list(leaves.values())) for value in (actual, wanted)]
    for name, one, other in zip(leaves, *slopes, strict=True):
        close(one, other, f"{where}: the gradient of {name} differs from the reference's", _GRADIENTS, _GRADIENTS)


def _shown(settings: Values) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or "the default settings"

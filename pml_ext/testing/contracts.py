"""What plugins name beside components, and the checks that the kit itself has for it."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..registry import settings_of
from .batches import shuffle
from .subject import SkipCheck

_NEEDED = "it needs {}, which a recipe's table gives; check it with functools.partial in a test of your own"


@dataclasses.dataclass(frozen=True)
class Named:
    """A value that a plugin names in a hook."""

    kind: str  # a key of CONTRACTS
    name: str
    value: Any
    plugin: str

    @property
    def title(self) -> str:
        """The name with its kind, as results show it; recipes, of which there may be many, share one."""
        if self.kind == "recipe":
            return f"{self.plugin} (recipes)"
        return f"{self.name} ({self.kind})"


Contract = Callable[[Named], str | None]


def requires_no_options(factory: Callable[..., Any], filled: Iterable[str] = (), positions: int = 0) -> None:
    """Skip a factory that has options without a default, beside those filled by name or by their position."""
    missing = []
    for place, (name, parameter) in enumerate(settings_of(factory).items()):
        if parameter.default is parameter.empty and name not in filled and place >= positions:
            missing.append(name)
    if missing:
        raise SkipCheck(_NEEDED.format(" and ".join(missing)))


def takes_arguments(factory: Callable[..., Any], *names: str) -> None:
    """Fail if a factory cannot be called with these arguments by position."""
    try:
        inspect.signature(factory).bind_partial(*names)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"it is called as factory({', '.join(names)}, ...), but {error}") from error


def check_documentation(named: Named) -> None:
    """A name needs a line for ``pml-ext list``: the first of its docstring."""
    text = named.value.summary if named.kind == "command" else getattr(named.value, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        raise AssertionError("it has no docstring (or summary), which `pml-ext list` and --help show; write one")


def check_metric(named: Named) -> str:
    """A metric returns a finite number, the same for images in another order, with a gallery and without."""
    from ..evaluation.calculator import RetrievalAccuracyCalculator
    from ..evaluation.of_plugins import needs_clusters

    calculator = RetrievalAccuracyCalculator(include=(named.name,), k="max_bin_count", device=torch.device("cpu"))
    labels = torch.arange(6).repeat_interleave(5)
    centers = torch.nn.functional.normalize(torch.randn(6, 8))
    points = torch.nn.functional.normalize(centers[labels] + 0.4 * torch.randn(30, 8))
    order = shuffle(30, 1)

    def value(*arguments: Any) -> float:
        found = float(calculator.get_accuracy(*arguments)[named.name])
        if not math.isfinite(found):
            raise AssertionError(f"it gives {found} for six classes of five images")
        return found

    first = value(points, labels)
    other = value(points[order], labels[order])
    if not needs_clusters(named.value) and not math.isclose(first, other, rel_tol=1e-5, abs_tol=1e-6):
        raise AssertionError(f"the order of the images changes it: {first:.6g} and {other:.6g}")
    in_gallery = value(points[::2], labels[::2], points[1::2], labels[1::2])
    return f"{first:.4g}, and {in_gallery:.4g} with a gallery"


# Of each kind; tools give more for the kinds that they use, by the hook ``pml_ext_checks``.
CONTRACTS: dict[str, tuple[Contract, ...]] = {
    **dict.fromkeys(("data set", "trunk", "transform", "tracker", "store", "command"), (check_documentation,)),
    "metric": (check_documentation, check_metric),
    "recipe": (),
}

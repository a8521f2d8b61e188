"""Values that plugins name in hooks, other than components."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..registry import settings_of
from .subject import skip_unless

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
        """The name with its kind; all recipes of a plugin share one."""
        if self.kind == "recipe":
            return f"{self.plugin} (recipes)"
        return f"{self.name} ({self.kind})"


Contract = Callable[[Named], str | None]


def requires_no_options(factory: Callable[..., Any], filled: Iterable[str] = (), positions: int = 0) -> None:
    """Skip a factory with options that have no default and are not filled."""
    given = {*[*settings_of(factory)][:positions], *filled}
    missing = [name for name, p in settings_of(factory).items() if p.default is p.empty and name not in given]
    skip_unless(not missing, _NEEDED.format(" and ".join(missing)))


def takes_arguments(factory: Callable[..., Any], *names: str) -> None:
    """Fail if a factory cannot be called with these arguments by position."""
    try:
        inspect.signature(factory).bind_partial(*names)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"it is called as factory({', '.join(names)}, ...), but {error}") from error

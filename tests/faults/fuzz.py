"""Recipes, overrides and settings mutated, with fixed seeds: the project's own error, or a valid recipe."""

import copy
import datetime
import itertools
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST = 600
ODD: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    10**6,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.0,
    -0.0,
    0.5,
    1.0,
    -1.5,
    1e-320,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    True,
    False,
    "",
    "a",
    "cosine",
    "none",
    "mean",
    "a" * 5000,
    "\x00\x1b[31m\n",
    "é\u202e",
    "../..",
    [],
    [1],
    [1, 2],
    ["a"],
    [[]],
    [0.1, 0.2, 0.3],
    {},
    {"name": ""},
    {"name": "pml/mean"},
    {"name": "cbml"},
    {"name": 3},
    {"a": {"b": [1]}},
    {"name": "pml/contrastive", "reducer": {"name": "pml/nothing"}},
)
# What single settings get beside these: values that more of them take, and neighbors of those.
MORE: tuple[Any, ...] = (
    4,
    5,
    12,
    16,
    100,
    1000,
    -3,
    65_536,
    1e-8,
    1e-3,
    0.25,
    0.1,
    0.9,
    2.0,
    10.0,
    1e5,
    -0.1,
    1e10,
    " ",
    "1",
    "true",
    "0.5",
    "cbml",
    "pml/mean",
    "digits",
    "adam",
    "euclidean",
    "all",
    "semihard",
    "name",
    [0],
    [0.5],
    [-1],
    [True],
    [1, 1, 1],
    [[1, 2], [3]],
    [1, "a"],
    ["a", "b"],
    [0.0, 1.0],
    {"x": 1},
    {"name": "pml/sum"},
    {"name": "pml/lp"},
    {"name": "pml/lp", "p": 0},
    {"name": "pml/mean", "x": 1},
    {"name": "digits"},
    {"name": "pml/dot-product-similarity"},
    datetime.date(2020, 1, 1),
    datetime.time(1, 2),
)


def odd(draw: random.Random) -> Any:
    """A value that no setting expects, or that one might."""
    return copy.deepcopy(draw.choice(ODD))


def places(tables: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in nested tables and lists."""
    items = tables.items() if isinstance(tables, dict) else enumerate(tables) if isinstance(tables, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(tables: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Tables with one to three things changed, taken out, put in, renamed or moved."""
    tables = copy.deepcopy(tables)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        known = list(places(tables))
        if not known:
            break
        path = draw.choice(known)
        owner = tables
        for key in path[:-1]:
            owner = owner[key]
        what = draw.randrange(6)
        if what <= 1:
            owner[path[-1]] = odd(draw)
        elif what == 2:
            del owner[path[-1]]
        elif what == 3 and isinstance(owner, dict):
            owner[draw.choice(("name", "weight", "x" * 300, "", "reducer", "distance", "miner", "a.b"))] = odd(draw)
        elif what == 4 and isinstance(owner, dict):
            owner[str(path[-1]) + draw.choice(("s", "_", "\x07"))] = owner.pop(path[-1])
        else:
            value: Any = odd(draw)
            for _ in range(draw.choice((1, 2, 200))):
                value = {"name": value} if draw.random() < 0.5 else [value]
            owner[path[-1]] = value
    return tables


def override(tables: dict[str, Any], draw: random.Random) -> str:
    """What somebody might type behind ``--set``."""
    path = ".".join(map(str, draw.choice(list(places(tables)))))
    values = (
        "1",
        "-1",
        "nan",
        "inf",
        "[]",
        "{",
        "{}",
        '{name=""}',
        "[" * 2000,
        "9" * 5000,
        "x" * 3000,
        "true",
        "''",
        "\x1b[2J",
        "2020-01-01",
        "[1, 2]",
        '{name="pml/mean", a={b=[1]}}',
        "\udcff",
        "=",
        "",
    )
    return draw.choice(
        (f"{path}={draw.choice(values)}", f"{path}.x={draw.choice(values)}", f"{'a.' * 500}b=1", path, "=1")
    )


def told(attempt: Callable[[], Any]) -> str:
    """What is wrong with how an attempt has ended; "" if it did well, or with an error of the project's own."""
    from pml_ext.errors import PmlExtError

    try:
        with warnings.catch_warnings(action="ignore"):
            attempt()
    except PmlExtError as error:
        text = str(error)
        if len(text) > MOST:
            return f"a message of {len(text)} characters: {text[:80]}"
        if not text.isprintable():
            return f"a message that cannot be printed: {text[:200]!r}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:100]!r}"
    return ""


def single_settings() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each setting of each component with each value: kind, what it is, and the tables of a recipe with it."""
    from pml_ext import registry

    base = {
        "data": {"name": "digits"},
        "model": {"trunk": {"name": "mlp"}, "embedding_size": 4},
        "schedule": {"epochs": 2},
    }
    hosts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "loss": lambda table: {"loss": table},
        "miner": lambda table: {"loss": {"name": "pml/contrastive", "miner": table}},
        "regularizer": lambda table: {"loss": {"name": "pml/contrastive", "regularizer": table}},
        "distance": lambda table: {"loss": {"name": "pml/contrastive", "distance": table}},
        "reducer": lambda table: {"loss": {"name": "pml/contrastive", "reducer": table}},
        "sampler": lambda table: {"loss": {"name": "pml/contrastive"}, "sampler": table},
    }
    for kind, host in hosts.items():
        for component in registry.components(kind):
            for setting in (*component.settings, "weight", "no_such_setting"):
                for value in (*ODD, *MORE):
                    yield kind, f"{component.name}.{setting}", base | host({"name": component.name, setting: value})


def _is_large(value: Any, largest: float) -> bool:
    if isinstance(value, dict):
        return any(_is_large(item, largest) for item in value.values())
    return isinstance(value, int) and value > largest


def settings(count: int, seed: int = 0, largest: float = float("inf")) -> Iterator[tuple[Any, str]]:
    """Some of the single settings, spread over all, and what is wrong with how each is taken.

    Sizes above ``largest`` are left out: what a machine can just hold takes it a while to fill.
    """
    from pml_ext_train.recipe import validate

    distinct = {repr(case): case for case in single_settings() if not _is_large(case[2], largest)}
    everything = list(distinct.values())
    random.Random(seed).shuffle(everything)
    for kind, name, tables in itertools.islice(everything, count):
        yield (kind, name, tables), told(lambda tables=tables: validate(tables, "recipe.toml"))

"""Which runs there are to do, each in which folder, and whether what a folder holds may be gone on with."""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, printable, shortened
from ..files import DamagedError, is_left_over, read_toml
from . import checkpoint
from .lock import LOCK
from .recipe import Recipe, load_recipes


@dataclass(frozen=True)
class Plan:
    """One run to do.

    Args:
        name: the recipe's name, with its variant.
        recipe: what to train.
        seed: of all generators.
        folder: where it is written.
    """

    name: str
    recipe: Recipe
    seed: int
    folder: Path


def plan(
    name: str,
    out: Path | None = None,
    seed: int = 0,
    seeds: int = 1,
    overrides: Iterable[str] = (),
    resume: bool = False,
) -> list[Plan]:
    """The runs of a recipe, checked before any begins.

    Args:
        name: a recipe's name or file; see :func:`load_recipes`.
        out: the folder to write; by default ``runs/NAME-SEED-TIME``. More than one run get sub-folders of it.
        seed: the first seed.
        seeds: how many seeds, counted up from the first.
        overrides: ``KEY=VALUE`` pairs.
        resume: whether the folder may exist.

    Raises:
        ConfigError: the recipe is wrong, or the folder exists and is not resumed, or holds another run.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: wanted 1 or more")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: wanted 0 or more")
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to go on with")
    if resume and out is not None and not out.exists() and not restarted():
        raise ConfigError(f"{out}: there is no run to resume; correct --out, or leave out --resume to begin one")
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise ConfigError("torchrun --max-restarts needs --out, the folder in which a restart finds the run")
    recipes = load_recipes(name, overrides)
    if out is None:
        time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        shown = Path(name).stem if name.endswith(".toml") else name.replace("/", "-")
        out = Path("runs") / f"{shown}-{seed}-{time}"
    if out.exists() and not resume:
        raise ConfigError(f"{out} exists; add --resume to go on with the run in it, or choose another --out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out wants a folder")
    several = len(recipes) * seeds > 1
    if several and (out / "recipe.toml").exists():
        raise ConfigError(f"{out} holds one run; several runs want a folder of their own, choose another --out")
    plans = []
    for full_name, recipe in recipes.items():
        variant = _folder_name(full_name.partition("@")[2])
        for number in range(seed, seed + seeds):
            parts = [variant] * (len(recipes) > 1) + [f"seed-{number}"] * (seeds > 1)
            plans.append(Plan(full_name, recipe, number, out.joinpath("-".join(parts)) if several else out))
    for each in plans:
        _check_same(each)
    return plans


def _folder_name(variant: str) -> str:
    """The name of a variant as that of a folder, in the folder that is asked for and nowhere else."""
    name = printable(variant).replace("/", "-").replace("\\", "-")
    if len(name) > 100:
        name = f"{name[:80]}-{hashlib.sha256(variant.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
    return name.replace(".", "-") if name.strip(".") == "" else name


_OF_A_RUN = {"checkpoints", "records", "tensorboard", "figures", "network.json", LOCK}


def restarted() -> bool:
    """Whether torchrun has started the processes again after one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _check_same(plan: Plan) -> None:
    """A folder that is resumed must hold the same recipe and seed."""
    saved = plan.folder / "recipe.toml"
    before = _saved_recipe(plan.folder)
    if before is None:
        return
    tables, run = before
    wanted = plan.recipe.as_dict()
    if run.get("seed") != plan.seed:
        raise ConfigError(
            f"{plan.folder} holds a run with seed {run.get('seed')}, not {plan.seed}; type --seed {run.get('seed')}"
        )
    if (difference := _first_difference(tables, wanted)) is not None:
        key, old, new = difference
        raise ConfigError(f"{saved}: {key} is {old!r} in the run to resume, but {new!r} now; resume it with the same")


def _saved_recipe(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The tables and the ``[run]`` of the run in a folder; None where a run may begin."""
    if not folder.exists():
        return None
    saved, reason = folder / "recipe.toml", "no recipe.toml in it"
    if saved.is_file():
        try:
            tables = read_toml(saved, "run")
            return tables, tables.pop("run")
        except DamagedError as error:
            reason = f"recipe.toml is damaged: {error}"
    last = checkpoint.load_to_resume(folder / "checkpoints" / "last.pt")
    if last is not None and "recipe" in last[0]:  # it has what the recipe's file had
        return last[0]["recipe"], last[0]["run"]
    if saved.is_file():
        raise ConfigError(
            f"{shortened(f'{folder} cannot be resumed ({reason})')}; delete {saved} and train with "
            "--resume: training begins again"
        )
    if all(path.name in _OF_A_RUN or is_left_over(path) for path in folder.iterdir()):
        return None
    raise ConfigError(f"{folder} holds no run ({reason}); choose another --out")


def _first_difference(old: Any, new: Any, key: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for part in [*old, *(part for part in new if part not in old)]:
            inner = f"{key}.{part}" if key else part
            if (difference := _first_difference(old.get(part), new.get(part), inner)) is not None:
                return difference
        return None
    return None if old == new else (key or "recipe", old, new)

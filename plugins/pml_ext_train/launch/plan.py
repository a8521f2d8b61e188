"""The runs of a command, checked before the first begins."""

import datetime
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pml_ext.errors import ConfigError, DataError, printable

from ..files import SUMS, DamagedError, check_writable, final_path, read_toml
from ..recipe import Override, Overrides, Recipe, flat, load_recipes, overrides_of
from ..records import CHOICE, FILES, LAST, METRICS, RECIPE, TRIALS, check_unchanged, read_metrics, tables_of_run
from ..results.verdict import is_trained

LOCK = ".lock"


@dataclass(frozen=True)
class Plan:
    """A planned run."""

    name: str
    recipe: Recipe
    seed: int
    folder: Path
    trials: int = 0  # number of trials that chose values of the recipe
    epochs_before: int | None = None  # epochs of the run that the folder holds
    overrides: tuple[Override, ...] = ()  # for errors
    file: str | None = None  # of the recipe, if the name comes from the run that wrote it


def plan(
    name: str,
    out: Path | None = None,
    seed: int = 0,
    seeds: int = 1,
    overrides: Overrides = (),
    resume: bool = False,
) -> list[Plan]:
    """The checked runs of a recipe; arguments as for :func:`train`."""
    _check_resumable(out, resume)
    overrides = tuple(overrides_of(overrides))
    recipes = load_recipes(name, overrides, begins_first=True)
    if out is None:
        out = default_folder(name, seed)
    _check_free(out, resume)
    if not resume:
        check_writable("--out", out)
    recorded = _recorded_name(name, out)
    file = name if recorded else None
    plans = []
    for full_name, recipe in recipes.items():
        for number in range(seed, seed + seeds):
            folder = out / _folder_name(full_name, number, several_recipes=len(recipes) > 1, several_seeds=seeds > 1)
            before = _epochs_before(folder, recipe, number)
            shown = recorded or full_name
            plans.append(Plan(shown, recipe, number, folder, overrides=overrides, epochs_before=before, file=file))
    return plans


def check_folder(out: Path | None, resume: bool) -> None:
    """Raise ConfigError for a folder in which no run can begin or resume."""
    _check_resumable(out, resume)
    if out is not None:
        _check_free(out, resume)
        check_writable("--out", out)
        if out.is_dir() and not any(out.glob("seed-*")):
            _check_only_files_of_a_run(out)


def _check_resumable(out: Path | None, resume: bool) -> None:
    if out is None and resume:
        raise ConfigError("--resume needs --out, the folder of the run; type --out RUN --resume")
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise ConfigError("torchrun --max-restarts needs --out, so that restarted processes can resume; type --out RUN")
    if resume and out is not None and not out.exists() and not restarted():
        raise ConfigError(f"{out}: there is no run to resume; correct --out, or leave out --resume to begin one")


def _check_free(out: Path, resume: bool) -> None:
    if out.exists() and not (resume and out.is_dir()):
        raise ConfigError(f"{out} exists; add --resume to resume the run in it, or choose another --out")


def _recorded_name(name: str, out: Path) -> str | None:
    """The recipe name recorded in a run's folder, if ``name`` is its recipe file."""
    file = Path(name)
    if file.name != RECIPE or out not in (file.parent, file.parent.parent):
        return None
    return tables_of_run(file.parent)["run"].get("recipe")  # type: ignore[no-any-return]


def default_folder(name: str, seed: int) -> Path:
    """``runs/NAME-SEED-TIME`` for a run that begins now."""
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    shown = Path(name).stem if name.endswith(".toml") else re.sub("[/:]", "-", name)  # Windows allows no colon
    return Path("runs") / f"{shown}-{seed}-{time}"


def _folder_name(full_name: str, seed: int, several_recipes: bool, several_seeds: bool) -> str:
    parts = []
    if several_recipes:
        variant = printable(full_name.partition("@")[2])
        parts.append(re.sub(r"[/\\]|^\.+$", "-", variant))
    if several_seeds:
        parts.append(f"seed-{seed}")
    return "-".join(parts)


def restarted() -> bool:
    """Whether torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _epochs_before(folder: Path, recipe: Recipe, seed: int) -> int | None:
    """Epochs of a folder's run, or None; ConfigError for a different recipe, seed or files."""
    if not folder.exists():
        return None
    try:
        check_unchanged(folder, RECIPE, damaged_sums=True)
        tables = read_toml(folder / RECIPE, "run")
    except (FileNotFoundError, DamagedError, DataError):  # checkpoints refuse another recipe or seed as well
        _check_only_files_of_a_run(folder)
        return None
    before = tables.pop("run").get("seed")
    if before != seed:
        raise ConfigError(f"{folder} holds a run with seed {before}, not {seed}; type --seed {before}")
    old = flat(tables)
    new = flat(recipe.as_dict())
    epochs: int = old["schedule.epochs"]
    extends = recipe.schedule.epochs > epochs and recipe.schedule.name in ("constant", "cosine")
    for key in [*old, *new]:
        may_change = key.startswith("track") or (key == "schedule.epochs" and extends)
        if old.get(key) != new.get(key) and not may_change:
            if _is_untrained(folder):
                raise ConfigError(
                    f"{folder}: the run there trains nothing, because its embeddings are the raw features; "
                    "choose another --out to train"
                )
            raise ConfigError(
                f"{folder / RECIPE}: {key} is {old.get(key)!r} in the run to resume, but {new.get(key)!r} now; resume "
                "it with the same"
            )
    return epochs


def _is_untrained(folder: Path) -> bool:
    try:
        return not is_trained(read_metrics(folder / METRICS))
    except (FileNotFoundError, DataError):
        return False


def _check_only_files_of_a_run(folder: Path) -> None:
    if (folder / LAST).exists() or (folder / METRICS).exists():
        return
    names = {(final_path(path) or path).name for path in folder.iterdir()}
    if names - {*FILES, CHOICE, TRIALS, LOCK, SUMS}:
        raise ConfigError(f"{folder} has other files and no run (no {RECIPE}); choose another --out")

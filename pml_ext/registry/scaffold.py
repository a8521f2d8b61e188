"""The package of a new plugin, from templates."""

from __future__ import annotations

import datetime
import importlib.util
import re
from pathlib import Path

from .. import registry
from ..errors import ConfigError, needs_extra
from .discovery import RESERVED


def new_plugin(name: str, folder: Path | None = None) -> list[Path]:
    """Write a package with a loss, a recipe and passing tests into a folder, and return its files.

    Distribution, entry point and loss use ``name``. ConfigError for an invalid or taken name, or a non-empty folder.
    """
    with needs_extra("train", "pml-ext new-plugin"):
        import jinja2
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(f"{name}: a plugin's name is kebab-case: small letters, digits and hyphens, such as my-loss")
    module = name.replace("-", "_")
    class_name = "".join(map(str.capitalize, name.removesuffix("-loss").split("-"))) + "Loss"
    if by := _taken_by(name, module, class_name):
        raise ConfigError(f"{name}: that name is taken by {by}; choose another, such as my-{name}")
    place = Path(name) if folder is None else folder
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place} exists and is not empty; choose another name, or --out another folder")
    about = {"name": name, "module": module, "class_name": class_name, "year": datetime.date.today().year}
    templates = jinja2.PackageLoader(__package__, "templates/plugin")
    environment = jinja2.Environment(loader=templates, keep_trailing_newline=True, autoescape=False)
    written = []
    for template in environment.list_templates(["jinja"]):
        file = place / template.removesuffix(".jinja").replace("MODULE", module)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(environment.get_template(template).render(about), "utf-8")
        written.append(file)
    return written


def _taken_by(name: str, module: str, class_name: str) -> str:
    if any(name in (each.name, each.distribution) for each in registry.plugins()) or name in RESERVED:
        return "a plugin (pml-ext plugins shows which)"
    if any(name == component.name for component in registry.components()) or class_name in registry.class_names():
        return "a component (pml-ext list shows which)"
    spec = importlib.util.find_spec(module)  # a folder without code has no origin
    return "an installed package" if spec is not None and spec.origin is not None else ""

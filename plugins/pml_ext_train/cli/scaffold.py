"""The package of a new plugin, from templates."""

import datetime
import importlib.util
import keyword
import re
from pathlib import Path

from pml_ext import registry
from pml_ext.errors import ConfigError, needs_extra
from pml_ext.registry.discovery import RESERVED


def new_plugin(name: str, folder: Path | None = None) -> list[Path]:
    """Write a package with a loss, a recipe and tests into a folder; return its files.

    ConfigError for an invalid or taken name, or a non-empty folder.
    """
    with needs_extra("train", "pml-ext new-plugin"):
        import jinja2
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(
            f"{name}: a plugin's name is in kebab-case: lowercase letters, digits and hyphens, such as my-loss"
        )
    module = name.replace("-", "_")
    words = name.removesuffix("-loss").split("-")
    class_name = "".join(word.capitalize() for word in words) + "Loss"
    owner = _owner_of(name, module, class_name)
    if owner:
        raise ConfigError(f"{name}: that name is taken by {owner}; choose another, such as my-{name}")
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


def _owner_of(name: str, module: str, class_name: str) -> str:
    """Return what already has the name of the plugin, its module or class, or an empty string."""
    if keyword.iskeyword(module):
        return "a keyword of Python"
    if name in RESERVED or any(name in (record.name, record.distribution) for record in registry.plugins()):
        return "a plugin (pml-ext plugins shows which)"
    components = {component.name for component in registry.components()}
    if name in components or class_name in registry.registered("class"):
        return "a component (pml-ext list shows which)"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # a folder without code has no origin
        return "an installed package"
    return ""

"""MkDocs hook: append the reference to its pages, from the schema of recipes, docstrings and ``--help``."""

import ast
import inspect
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import griffe
from typer.testing import CliRunner

from pml_ext import plugin, registry
from pml_ext.evaluation.metrics import OF_LISTED, metrics_of
from pml_ext.registry import hooks as hookspecs
from pml_ext.registry.components import KINDS, Component
from pml_ext.settings import settings_of
from pml_ext.testing.checks import CHECKS
from pml_ext_train.cli.app import app_for
from pml_ext_train.cli.targets import CONTRACTS, checks_of_tools
from pml_ext_train.recipe import schema

sys.path.append(str(Path(__file__).parent))
from griffe_rst import markdown as without_rst

OF_PML = {"collect_stats", "distance", "reducer", "embedding_regularizer", "embedding_reg_weight"}  # what bases take
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Append the generated part of a page."""
    generated = PAGES.get(page.file.src_uri)
    return markdown if generated is None else f"{markdown}\n{generated()}"


def table(head: str, rows: list[list[str]]) -> str:
    """Return a Markdown table; a heading's columns are separated by bars."""
    lines = [head, "|".join(["---"] * (head.count("|") + 1))]
    for cells in rows:
        lines.append(" | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring; for a class that inherits it, the name of its package."""
    inherits = isinstance(thing, type) and not vars(thing).get("__doc__")
    if inherits or isinstance(thing, types.GenericAlias):
        return f"from `{thing.__module__.partition('.')[0]}`"
    return without_rst(re.split(r"\n\n|\nArgs:", inspect.getdoc(thing) or "")[0])


def recipes() -> str:
    """Return the keys of a recipe: a section for each table, and those inside it after it."""
    definitions = schema.Recipe.model_json_schema()
    comments = comments_of_schema()
    sections: dict[str, str] = {}
    pending = [("", "Recipe", definitions)]
    while pending:
        place, name, parent = pending.pop(0)
        if name in sections:
            continue
        rows = []
        inner = []
        for key, value in parent["properties"].items():
            meaning = comments.get((name, key)) or comments["NamedTable", key]
            rows.append([f"`{key}`", kind_of_value(value), default_of(value), meaning])
            for found in re.findall(r"#/\$defs/(\w+)", json.dumps(value)):
                if found != "NamedTable":
                    inner.append((f"{place}.{key}".strip("."), found, definitions["$defs"][found]))
        title = f"`[{place}]`" if place else "Tables of a recipe"
        sections[name] = f"## {title}\n\n{table('key | value | default | meaning', rows)}"
        pending = inner + pending
    return "\n".join(sections.values())


def default_of(value: dict[str, Any]) -> str:
    """Return the default of a property of a JSON schema: nothing for None and for tables."""
    if "default" not in value:
        return "required"
    default = value["default"]
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


def kind_of_value(value: dict[str, Any]) -> str:
    """Return the type and range of a property of a JSON schema."""
    choices = value.get("anyOf") or value.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(kind_of_value(each) for each in choices if each.get("type") != "null"))
    if "enum" in value or "const" in value:
        return ", ".join(f"`{json.dumps(each)}`" for each in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        return f"list: {kind_of_value(value['items'])}"
    bounds = [f"{word} {value[key]:g}" for key, word in BOUNDS.items() if value.get(key, schema.MOST) != schema.MOST]
    return " ".join([value.get("type", "table").replace("object", "table"), " and ".join(bounds)]).strip()


def comments_of_schema() -> dict[tuple[str, str], str]:
    """Return the comment of each key of the schema, beside it or in the lines before it, by class and key."""
    lines = Path(schema.__file__).read_text("utf-8").splitlines()
    found = {}
    for cls in ast.parse("\n".join(lines)).body:
        for node in getattr(cls, "body", ()):
            if isinstance(node, ast.AnnAssign):
                first = node.lineno - 1
                while lines[first - 1].strip().startswith("#"):
                    first -= 1
                beside = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
                text = " ".join([*lines[first : node.lineno - 1], beside]).replace("# ", "")
                found[cls.name, node.target.id] = text.strip()
    return found


def components() -> str:
    """Return a section for each kind of component, with the settings of each."""
    sections = []
    for kind in KINDS:
        sections.append(f"## {kind.capitalize()}{'es' if kind == 'loss' else 's'}\n")
        for component in registry.components(kind):
            sections.append(section_of(component))
    return "\n".join(sections)


def section_of(component: Component) -> str:
    """Return the summary of a component, and its settings with defaults and meanings."""
    meanings: dict[str, str] = {}
    for base in component.cls.__mro__:
        docstring = griffe.Docstring(inspect.cleandoc(vars(base).get("__doc__") or ""))
        for part in docstring.parse("google", warn_unknown_params=False, warn_missing_types=False):
            if part.kind is griffe.DocstringSectionKind.parameters:
                meanings = {each.name: without_rst(each.description) for each in part.value} | meanings
    rows = []
    for name, parameter in settings_of(component.cls).items():
        if name not in OF_PML or name in meanings:
            default = getattr(parameter.default, "__name__", repr(parameter.default))
            shown = "required" if parameter.default is parameter.empty else f"`{default}`"
            rows.append([f"`{name}`", shown, meanings.get(name, "")])
    if meanings:
        settings = table("setting | default | meaning", rows)
    else:
        settings = ", ".join(f"{name} ({default})" for name, default, _ in rows) + "\n"
    title = f"### `{registry.short_name(component)}`: {component.class_name}"
    return "\n".join([title, "", summary(component.cls), "", settings])


def metrics() -> str:
    """Return the names of the metrics of runs and of the calculator."""
    known = metrics_of((1,), (1,), (1, 3), (10,), (1,), verification=True)
    rows = [[f"`{each.name}`" if each.in_runs else "", f"`{each.accuracy}`", each.title] for each in known]
    for name, title in (OF_LISTED["pairs"] | OF_LISTED["triplets"]).items():
        if name not in {each.name for each in known}:
            rows.append([f"`{name}`", "", title])
    return table("`metrics.json` | calculator | title in reports", rows)


def commands() -> str:
    """Return the ``--help`` of each command."""
    sections = []
    for name in sorted(registry.commands()):
        shown = CliRunner().invoke(app_for([name]), [name, "--help"], prog_name="pml-ext", terminal_width=100)
        sections.append(f"## pml-ext {name}\n\n```text\n{shown.output.strip()}\n```\n")
    return "\n".join(sections)


def helpers() -> str:
    """Return the hooks and the names of ``pml_ext.plugin``."""
    named = {name: getattr(hookspecs, name) for name in vars(hookspecs) if name.startswith("pml_ext_")}
    sections = ["## Hooks\n"]
    for name, hook in named.items():
        sections.append(f"### `{name}`\n\n{without_rst(inspect.getdoc(hook) or '')}\n")
    names = {name: getattr(plugin, name) for name in sorted(dir(plugin), key=str.lower)}
    classes = {name: thing for name, thing in names.items() if isinstance(thing, type)}
    functions = {name: thing for name, thing in names.items() if name not in classes}
    for title, things in (("Classes", classes), ("Functions", functions)):
        rows = [[call(*each), summary(each[1])] for each in things.items()]
        sections += [f"## {title}\n", table("name in `pml_ext.plugin` | ", rows)]
    return "\n".join(sections)


def call(name: str, thing: Any) -> str:
    """Return a name with its signature, without annotations, as code."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # a table of types, an exception, a module
        return f"`{name}`"
    shown = [each.replace(annotation=each.empty) for each in parameters if each.name != "self"]
    return f"`{name}{inspect.Signature(shown)}`"


def checks() -> str:
    """Return what each conformance check requires, and of which components."""
    kinds: dict[Any, list[str]] = {}
    for kind, of_kind in CHECKS.items():
        for check in of_kind:
            kinds.setdefault(check, []).append(kind)
    for kind, of_kind in CONTRACTS.items():
        for check in (*of_kind, *checks_of_tools(kind)):
            kinds.setdefault(check, []).append(kind)
    rows = [[f"`{check.__name__}`", ", ".join(names), summary(check)] for check, names in kinds.items()]
    return "## All checks\n\n" + table("check | kinds | requirement", rows)


PAGES = {
    "plugins/checks.md": checks,
    "reference/recipes.md": recipes,
    "reference/components.md": components,
    "reference/metrics.md": metrics,
    "reference/commands.md": commands,
    "plugins/reference.md": helpers,
}

"""Write ``reference.md``: ``python docs/plugins/reference.py``. A test compares the file with the code."""

import enum
import inspect
import types
from pathlib import Path

from pml_ext import plugin
from pml_ext.registry import hooks as hookspecs

HOOKS = [name for name in vars(hookspecs) if name.startswith("pml_ext_")]
PATH = Path(__file__).with_suffix(".md")
HEAD = """# Reference of hooks and helpers

Written by `python docs/plugins/reference.py`. `help(pml_ext.plugin.NAME)` has arguments, ranges and errors.
"""


def first_line(thing):
    """Return the first sentence of a docstring, or for an inherited docstring the package of the class."""
    if isinstance(thing, types.GenericAlias):
        return f"`{thing}`"
    own = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    if not own and isinstance(thing, type):
        return f"`{thing.__module__.partition('.')[0]}`'s"
    return inspect.cleandoc(own or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def signature(thing):
    """Return a signature without annotations."""
    if isinstance(thing, (types.GenericAlias, enum.EnumMeta)):  # an enum's differs between versions of Python
        return ""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    return str(inspect.Signature(shown)).replace("|", "\\|")


def text():
    """Return the page."""
    lines = [HEAD, "## Hooks\n", "| hook | |", "|---|---|"]
    lines += [
        f"| `{name}{signature(getattr(hookspecs, name))}` | {first_line(getattr(hookspecs, name))} |" for name in HOOKS
    ]
    mine = {name: getattr(plugin, name) for name in dir(plugin)}
    classes = {name: thing for name, thing in mine.items() if isinstance(thing, type)}
    functions = {name: thing for name, thing in mine.items() if name not in classes and callable(thing)}
    others = {name: thing for name, thing in mine.items() if name not in classes and name not in functions}
    for title, part in (("Classes", classes), ("Functions", functions), ("Modules and values", others)):
        lines += [f"\n## {title}\n", "| name in `pml_ext.plugin` | |", "|---|---|"]
        lines += [
            f"| `{name}{signature(thing) if part is not others else ''}` | {first_line(thing)} |"
            for name, thing in sorted(part.items(), key=lambda item: item[0].lower())
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")

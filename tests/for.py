"""Say which tests to run for files that changed: ``pytest $(python -m tests.for pml_ext/recipe/load.py)``.

Tests are chosen by imports: those that import the file, or a module that imports it (``--steps`` of them). A name that
a door or a package imports on first use counts as an import of the module that defines it. To these come the test file
of the same name and, for pages, recipes and other files that are not imported, the tests that name them.
"""

import argparse
import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

from pml_ext.lazy import imports_of_plugins, own_imports

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = PROJECT["tool"]["importlinter"]["root_packages"]
ALL = ("pyproject.toml", "tests/conftest.py", ".ci/run")  # what every test depends on


def chosen_tests(files: Iterable[str], steps: int = 1) -> list[str]:
    """Return the test files to run, relative to the root; ``["tests"]`` for a file that every test depends on."""
    graph = import_graph()
    tests = {path.relative_to(ROOT).as_posix(): module_of(path) for path in test_files()}
    chosen: set[str] = set()
    for given in files:
        path = Path(given).resolve()
        if not path.is_relative_to(ROOT) or not path.is_file():
            raise SystemExit(f"{given}: no such file in {ROOT}")
        name = path.relative_to(ROOT).as_posix()
        if name in ALL:
            return ["tests"]
        module = module_of(path)
        near = importers_of(graph, module, steps)
        found = set()
        for test, test_module in tests.items():
            is_named = module not in graph.modules and names_file(test, path)
            if is_named or test_module in near or is_mirror(test, path):
                found.add(test)
        if not found:  # called by its command alone
            found = {test for test in tests if Path(test).parent.name == room_of(path)}
        chosen |= found
    return sorted(chosen)


def table() -> str:
    """Return the rows of CONTRIBUTING.md's table: rooms, and the folders of tests of which a third imports them."""
    graph = import_graph()
    tests: dict[str, list[str]] = {}
    for path in test_files():
        tests.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(module_of(path))
    rows = []
    for room in rooms():
        package = module_of(ROOT / room / "__init__.py")
        inside = {package} | graph.find_descendants(package)
        shares = {}
        for folder, modules in tests.items():
            using = [each for each in modules if graph.find_modules_directly_imported_by(each) & inside]
            shares[folder] = len(using) / len(modules)
            if folder.removeprefix("tests/") == room.replace("pml_ext_", "").removeprefix("pml_ext/"):
                shares[folder] = 1.0  # its own
        chosen = sorted((each for each in shares if 3 * shares[each] >= 1), key=lambda each: (-shares[each], each))
        rows.append(f"| `{room}` | {' '.join(f'`{folder}`' for folder in chosen)} |")
    return "\n".join(rows)


def rooms() -> list[str]:
    """Return the folders of the layer and of the plugins."""
    found = [*(ROOT / "pml_ext").glob("*/__init__.py"), *(ROOT / "plugins").glob("*/__init__.py")]
    return sorted(path.parent.relative_to(ROOT).as_posix() for path in found)


def test_files() -> Iterator[Path]:
    """Yield all files of tests."""
    yield from (ROOT / "tests").rglob("test_*.py")


def module_of(path: Path) -> str:
    """Return the name of a Python file's module; of a file that is none, a name that no module has."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if path.suffix != ".py":
        return path.name
    if parts[0] == "plugins":
        del parts[0]
    if parts[-1] == "__init__":
        del parts[-1]
    return ".".join(parts)


def import_graph() -> grimp.ImportGraph:
    """Return the imports of the layer, the plugins and the tests, by modules that define what is imported."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    known = set(graph.modules)
    files = {module_of(path): path for folder in ("pml_ext", "plugins") for path in (ROOT / folder).rglob("*.py")}
    tests = {module_of(path): path for path in (ROOT / "tests").rglob("*.py")}
    lazy = {module for module in known if graph.find_modules_directly_imported_by(module) and is_lazy(files[module])}
    for module in lazy:
        for imported in graph.find_modules_directly_imported_by(module):
            graph.remove_import(importer=module, imported=imported)
    for module in tests:
        graph.add_module(module)
    known |= set(tests)
    for module, path in {**files, **tests}.items():
        if module in lazy:
            continue
        for imported in imports_in(path, module, known):
            graph.add_import(importer=module, imported=imported)
    return graph


def is_lazy(path: Path) -> bool:
    """Return whether a module imports its names on first use."""
    return path == ROOT / "pml_ext" / "__init__.py" or "\n__getattr__ = lazily(" in path.read_text("utf-8")


def imports_in(path: Path, module: str, known: set[str]) -> Iterator[str]:
    """Yield the modules that define what a file imports."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (above, node.module) if part)
            for alias in node.names:
                found = defining_module(source, alias.name, known)
                if found is not None and found != module:
                    yield found
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pml_ext":
            found = defining_module("pml_ext", node.attr, known)
            if found is not None and found != module:
                yield found


def defining_module(source: str, name: str, known: set[str]) -> str | None:
    """Return the module that ``from source import name`` leads to; None for one of another project."""
    if source not in known:
        return None
    if f"{source}.{name}" in known:
        return f"{source}.{name}"
    if source.startswith("tests"):
        return source
    origin = (own_imports(source) | imports_of_plugins(source)).get(name)
    if origin is None or origin == f"{source}.{name}":
        return source
    module, _, inner = origin.rpartition(".")
    return defining_module(module, inner, known) or source


def importers_of(graph: grimp.ImportGraph, module: str, steps: int) -> set[str]:
    """Return the modules that import one, directly or by up to ``steps`` modules between."""
    if module not in graph.modules:
        return set()
    found = {module}
    for _ in range(steps + 1):
        found = found.union(*(graph.find_modules_that_directly_import(each) for each in found))
    return found


def room_of(path: Path) -> str:
    """Return the name of the folder of tests of a module's room."""
    return path.parent.name.removeprefix("pml_ext_").replace("pml_ext", "tests")


def is_mirror(test: str, path: Path) -> bool:
    """Return whether a test file has a module's room and name, or for an ``__init__.py`` the room of its package."""
    room = room_of(path)
    if path.name == "__init__.py":
        return Path(test).parent.name == room
    return path.suffix == ".py" and Path(test).name == f"test_{path.stem}.py" and room in Path(test).parts


def names_file(test: str, path: Path) -> bool:
    """Return whether a test's text names a file that is not imported; all pages and recipes are read by some tests."""
    text = (ROOT / test).read_text("utf-8")
    if path.suffix == ".toml" and "recipes" in path.parts:
        place = path.parts.index("recipes")
        plugin = path.parts[place - 1].removeprefix("pml_ext_")
        name = "/".join([plugin, *path.parts[place + 1 :]]).removesuffix(".toml")
        return f'"{name}"' in text or "registry.recipes()" in text
    if path.suffix == ".md" and path.is_relative_to(ROOT / "docs") and 'rglob("*.md")' in text:
        return True
    return path.name in text


def main() -> None:
    """Print the tests for the files of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.for", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--steps", type=int, default=1, help="modules between a test and the file; default: 1")
    parser.add_argument("--table", action="store_true", help="print the table of CONTRIBUTING.md")
    given = parser.parse_args()
    if bool(given.files) == given.table:
        parser.error("wanted files that changed, or --table alone")
    print(table() if given.table else "\n".join(chosen_tests(given.files, given.steps)))


if __name__ == "__main__":
    main()

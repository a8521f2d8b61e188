"""The page on the architecture names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_files_of_the_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    names = set(re.findall(r"`([\w/]+\.py)`", page))
    assert len(names) > 20
    places = [ROOT, ROOT / "pml_ext", ROOT / "plugins" / "pml_ext_search"]
    missing = [name for name in names if not any((place / name).is_file() for place in places)]
    assert not missing


def test_the_tree_has_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = [path.parent.name for path in (ROOT / "pml_ext").glob("*/__init__.py")]
    plugins = [path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")]
    assert all(f"{room}/" in page for room in rooms)
    assert all(plugin in page for plugin in plugins)

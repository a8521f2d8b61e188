"""The page on the architecture names files that exist, and long files are those with a reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_files_of_the_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    names = set(re.findall(r"`([\w/]+\.py)`", page))
    assert len(names) > 20
    places = [ROOT, ROOT / "pml_ext", ROOT / "plugins" / "pml_ext_train", ROOT / "plugins" / "pml_ext_search"]
    missing = [name for name in names if not any((place / name).is_file() for place in places)]
    assert not missing


def test_the_tree_has_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = [path.parent.name for path in (ROOT / "pml_ext").glob("*/__init__.py")]
    rooms += [path.parent.name for path in (ROOT / "plugins" / "pml_ext_train").glob("*/__init__.py")]
    plugins = [path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")]
    assert all(f"{room}/" in page for room in rooms)
    assert all(plugin in page for plugin in plugins)


def test_long_files_have_a_reason():
    reasons = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| why it is one |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w/]+\.py)` \| \S", reasons, re.MULTILINE)
    long = []
    for room in ("pml_ext", "plugins"):
        for path in (ROOT / room).rglob("*.py"):
            if len(path.read_text("utf-8").splitlines()) > 400:
                long.append(path.relative_to(ROOT).as_posix())
    assert set(long) <= set(listed)
    assert len(listed) <= 12
    assert all((ROOT / name).is_file() for name in listed)

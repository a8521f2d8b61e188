"""The page on the architecture names files that exist, and long files are those with a reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_the_files_of_the_page_exist():
    names = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(names) > 20
    places = [ROOT, ROOT / "pml_ext", ROOT / "plugins" / "pml_ext_train", ROOT / "plugins" / "pml_ext_search"]
    assert [name for name in names if not any((place / name).is_file() for place in places)] == []


def test_the_tree_has_every_room():
    rooms = [*(ROOT / "pml_ext").glob("*/__init__.py"), *(ROOT / "plugins" / "pml_ext_train").glob("*/__init__.py")]
    plugins = (ROOT / "plugins").glob("*/__init__.py")
    assert [room for room in rooms if f"{room.parent.name}/" not in PAGE] == []
    assert [plugin for plugin in plugins if plugin.parent.name not in PAGE] == []


def test_long_files_have_a_reason():
    reasons = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| why it is one |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w/]+\.py)` \| \S", reasons, re.MULTILINE)
    files = [*(ROOT / "pml_ext").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    long = {file.relative_to(ROOT).as_posix() for file in files if len(file.read_text("utf-8").splitlines()) > 400}
    assert long <= set(listed)
    assert len(listed) <= 12
    assert all((ROOT / name).is_file() for name in listed)

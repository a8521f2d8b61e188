"""The page on faults names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs" / "faults.md").read_text("utf-8").splitlines() if line.startswith("| ")]


def test_every_row_names_tests_that_exist():
    rows = [row for row in ROWS if not row.endswith("| test |")]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2])
        assert named, row
        for path, name in named:
            assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"


def test_its_commands_are_modules():
    text = (ROOT / "docs" / "faults.md").read_text("utf-8")
    names = set(re.findall(r"python\s(benchmarks/faults/\w+\.py)", text))
    assert {Path(name).stem for name in names} == {"batches", "files", "fuzz", "kills", "soak"}
    assert all((ROOT / name).is_file() for name in names)

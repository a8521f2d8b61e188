"""The commands on plugins: check, plugins and new-plugin."""

import json
import re

from tests.testing.planted import bug_of

StopsHalfway = bug_of("check_sampler")


def test_check_names_what_fails_and_where(pml_ext_command):
    done = pml_ext_command("check", f"{StopsHalfway.__module__}.{StopsHalfway.__name__}", "-v")
    assert done.returncode == 1
    assert re.search(r"check_sampler +failed +ZeroDivisionError: .* \(at planted.py:\d+\)", done.stdout)
    assert re.search(r'File ".*planted.py", line \d+, in <lambda>\n.*images=lambda self, rows: 1 / 0', done.stdout)
    done = pml_ext_command("check", "hard-pair", "--fast", "--json")
    results = json.loads(done.stdout)
    assert [entry for entry in results if entry["status"] not in ("passed", "skipped")] == []
    assert done.returncode == 0
    assert pml_ext_command("check", "nowhere_at_all").returncode == 2


def test_plugins_are_listed_as_a_table_or_json(pml_ext_command):
    records = json.loads(pml_ext_command("plugins", "--json").stdout)
    assert {"angular", "cbml", "compare", "density", "pddm", "search", "triplets"} <= {each["name"] for each in records}
    assert {each["status"] for each in records} == {"ok"}
    done = pml_ext_command("plugins", "-v")
    assert done.returncode == 0
    assert re.search(r"cbml: pml-ext \S+, module pml_ext_cbml, ok\n  hooks       .*pml_ext_components", done.stdout)


def test_new_plugin_prints_files_and_next_steps(pml_ext_command, tmp_path, monkeypatch):
    done = pml_ext_command("new-plugin", "wide-margin", "--out", tmp_path / "new")
    *files, last = done.stdout.splitlines()
    written = {str(path) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert set(files) == written
    assert last == f"next: cd {tmp_path / 'new'}; pip install -e '.[dev]'; pytest; pml-ext check wide_margin"
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    done = pml_ext_command("new-plugin", "wide-margin", "--out", tmp_path / "my new one")
    *files, last = done.stdout.splitlines()
    assert all(file.startswith(str(tmp_path)) for file in files)
    assert last.startswith(f"next: cd '{tmp_path / 'my new one'}'; pip install -e '.[dev]'; pytest")
    refused = pml_ext_command("new-plugin", "WideMargin", "--out", tmp_path / "other")
    assert refused.returncode == 2
    assert "kebab-case" in refused.stderr

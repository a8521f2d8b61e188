"""Answers to many queries, written to a file."""

import json
import sys

import pytest

from pml_ext import load_run

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_many_queries_have_answers_of_single_ones(command, runs, folder, tmp_path, ending):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    own = ("--store", tmp_path / "own")
    out = tmp_path / f"answers.{ending}"
    command("index", runs[0], folder, *own)
    (tmp_path / "list").write_text("1/0001.png\n3/0003.png\n2/broken.png\n")
    done = command("query", runs[0], folder, "--list", tmp_path / "list", *own, "-k", 4, "-o", out, "--json")
    assert json.loads(done.stdout) == {"file": str(out), "queries": 2, "answers": 8}
    gone = command("query", runs[0], "--list", tmp_path / "list", *own, "-o", out, "--json")
    assert json.loads(gone.stdout)["queries"] == 0
    images = sorted(set(folder.rglob("0*.png")))
    assert command("query", runs[0], folder, *own, "-k", 4, "-o", out).stdout == f"800 answers for 200 images: {out}\n"
    singles = load_run(runs[0], "cpu", store=tmp_path / "own").query(images, k=4)
    wanted = {f"{single.query.split('/')[-2]}/{single.query.split('/')[-1]}": single for single in singles}
    if ending == "jsonl":
        found = {row["query"]: row["distances"] for row in map(json.loads, out.read_text().splitlines())}
    else:
        table = parquet.read_table(out).to_pylist()
        found = {row["query"]: [] for row in table}
        [found[row["query"]].append(row["distance"]) for row in table]
    assert found.keys() == wanted.keys()
    assert all(found[name] == pytest.approx(single.distances, abs=1e-4) for name, single in wanted.items())


def test_lines_need_neither_pyarrow_nor_parts(runs, folder, tmp_path, command, block, monkeypatch):
    block("parts")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    own = ("--store", tmp_path / "own")
    command("index", runs[0], folder, *own)
    out = tmp_path / "answers.jsonl"
    done = command("query", runs[0], folder / "3", *own, "-k", 2, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == json.loads(done.stdout)["queries"] > 0
    told = command("query", runs[0], folder / "3", *own, "-o", tmp_path / "answers.parquet")
    assert (told.returncode, "-o FILE.parquet needs the package 'pyarrow'" in told.stderr) == (2, True)


def test_without_parts_commands_name_the_plugin(runs, folder, tmp_path, command, block):
    block("parts")
    missing = "needs the plugin 'parts', which is blocked (by PML_EXT_BLOCK)"
    for arguments, what in (
        (("embed", runs[0], folder, "--part", "1/2", "-o", tmp_path / "parts"), "embed --part"),
        (("embed", runs[0], folder, "--on", "ray", "-o", tmp_path / "parts"), "embed --on ray"),
        (("index", runs[0], "--from", tmp_path / "parts"), "--from PARTS"),
    ):
        told = command(*arguments)
        assert (told.returncode, f"{what} {missing}" in told.stderr) == (2, True)
    assert command("embed", runs[0], folder, "--store", tmp_path / "own", "-o", tmp_path / "all.npz").returncode == 0

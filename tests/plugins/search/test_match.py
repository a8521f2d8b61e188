"""Answers to many queries, written to a file."""

import json

import pytest

from pml_ext import load_run

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_many_images_at_once_have_the_answers_of_single_ones(command, runs, folder, tmp_path, ending):
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
    assert command("query", runs[0], folder, *own, "-k", 4, "-o", out).stdout == f"800 answers to 200 images: {out}\n"
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


def test_wrong_files_of_answers(runs, folder, tmp_path, command):
    told = command("query", runs[0], folder, "-o", tmp_path / "answers.txt")
    assert (told.returncode, "wanted a file that ends in .parquet or .jsonl" in told.stderr) == (2, True)
    assert "-o wants one folder" in command("query", runs[0], "-o", tmp_path / "answers.jsonl").stderr

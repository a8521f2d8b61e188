"""Wrong arguments, refused before a folder is embedded; and nothing is created for them."""

import re

import pytest

from pml_ext_search.embedding import embedding
from pml_ext_search.trained import TrainedRun


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("index RUN FOLDER --index nonsense", "--index nonsense: faiss refuses it (could not parse index string"),
        ("index RUN FOLDER --store FILE", "file is a file; type --store FOLDER"),
        ("index RUN FOLDER --store FILE/deep/er", "cannot be written"),
        (
            "index RUN FOLDER --store pgvector:postgresql://u:pw@h/db",
            "--store pgvector:...: wanted a folder; a database",
        ),
        ("embed RUN FOLDER -o all.npz --store lancedb:TMP", "is filled by: pml-ext index"),
        ("embed RUN FOLDER -o all.txt", "-o all.txt: wanted a file that ends in .npz"),
        ("cluster RUN FOLDER --clusters 0", "--clusters 0: wanted 1 or more"),
        ("cluster RUN FOLDER --min-size 0", "--min-size 0: wanted 1 or more"),
        ("cluster RUN FOLDER --clusters 2 -o FILE", "file is a file; type -o FOLDER"),
        ("cluster RUN TMP/nowhere --clusters 2", "nowhere: no such folder"),
        ("query RUN IMAGE --picture TMP", "is a folder; type --picture FILE"),
        ("export RUN -o FILE", "file is a file; type -o FOLDER"),
        ("embed RUN FOLDER -o TMP/parts --part 0/3", "--part 0/3: wanted 1/3 to 3/3"),
        ("embed RUN FOLDER -o TMP/parts --list nothing", "--list goes with --part or --on ray"),
        ("embed RUN FOLDER -o TMP/parts --part 1/2 -j 4", "--ray-address, --jobs and --num-gpus go with --on ray"),
        ("embed RUN FOLDER -o TMP/parts --part 1/2 --store TMP", "--store goes without --part and --on ray"),
        ("index RUN --check --workers 2", "leave it out with --check or --from"),
        ("query RUN IMAGE --workers 2", "--list and --workers go with -o FILE"),
        ("query RUN", "wanted images or ids to look for; type: pml-ext query"),
        ("query RUN FOLDER -o TMP/answers.txt", "wanted a file that ends in .parquet or .jsonl"),
        ("query RUN -o TMP/answers.jsonl", "-o needs one folder"),
        ("select RUN -n 0", "-n 0: wanted 1 or more"),
        ("select RUN --sheet TMP", "is a folder; type --sheet FILE"),
        ("select RUN --csv TMP", "is a folder; type --csv FILE"),
        ("identify RUN --radius 0.5", "--radius is for photographs"),
        ("identify RUN x.png --radius 0.5 --far 0.1", "--radius sets the threshold, and --far and --on calibrate it"),
        ("identify RUN --score", "--score needs one folder"),
        ("identify RUN --far often", "--far often: wanted a rate between 0 and 1"),
        ("identify RUN gone.png --radius -1", "--radius -1: wanted a distance above 0"),
    ],
)
def test_wrong_arguments_are_refused_at_once(command, indexed, folder, tmp_path, monkeypatch, line, text):
    if "--part" in line:
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    run, gallery = indexed
    for name in ("embed", "read_batches"):
        place = TrainedRun if name == "embed" else embedding
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("embedded"))
    (tmp_path / "file").write_text("")
    places = {
        "RUN": run.folder,
        "FOLDER": folder,
        "IMAGE": folder / gallery.embedded.paths[0],
        "FILE": tmp_path / "file",
        "TMP": tmp_path,
    }
    for word, place in places.items():
        line = re.sub(rf" {word}\b", f" {place}", line)
    done = command(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_an_empty_argument_is_not_this_folder(command, runs, few, monkeypatch):
    monkeypatch.chdir(few[0])
    for arguments in (["index", runs[0], ""], ["embed", runs[0], "", "-o", "points.npz"], ["query", "", "a.png"]):
        done = command(*arguments)
        text = f"pml-ext: argument {arguments.index('') + 1} is empty, perhaps from an unset variable"
        assert (done.returncode, done.stderr) == (2, f"{text}; leave it out, or give a value\n")

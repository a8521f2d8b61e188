"""``--exclude`` and ``--pages`` of the commands that read a folder, and what an index keeps of them."""

import json
import shutil

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext_browse.collection import open_collections
from pml_ext_search.collection.problems import ExcludedImages

COMMANDS = {
    "fit": "FOLDER",
    "train": "triplets/digits --set data.name=folder:FOLDER",
    "index": "RUN FOLDER",
    "query": "RUN FOLDER -o answers.jsonl",
    "duplicates": "FOLDER",
    "select": "FOLDER",
    "labels": "FOLDER",
    "cluster": "RUN FOLDER",
    "embed": "RUN FOLDER -o embeddings.npz",
    "browse": "RUN FOLDER --no-open --port 0",
    "probe": "FOLDER --trunks convnet=random",
}


@pytest.fixture
def place(few, tmp_path):
    """A copied run, and a folder with 25 digits of the classes 0 to 3."""
    return shutil.copytree(few[1], tmp_path / "photographs")


def needed(command):
    """Skip a command whose package is not installed."""
    pytest.importorskip({"fit": "timm", "browse": "python_multipart"}.get(command, "pytest"))


@pytest.mark.parametrize("name", COMMANDS)
def test_patterns_reach_every_command(command, runs, place, tmp_path, monkeypatch, name):
    """A pattern that leaves nothing is an error of the one list of a folder's files."""
    needed(name)
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(runs[0], tmp_path / "run")
    command("index", run, place)
    places = {"RUN": run, "FOLDER": place}
    arguments = [
        str(places.get(word, word)).replace("folder:FOLDER", f"folder:{place}") for word in COMMANDS[name].split()
    ]
    done = command(name, *arguments, "--exclude", "*")
    assert done.returncode != 0
    assert "photographs: no image is left; the patterns leave out 10 folders by *." in " ".join(done.stderr.split())


def test_an_index_keeps_its_patterns(command, make, place):
    run = make()
    index = ("index", run.folder, "--store", place.parent / "store")
    all_images = json.loads(command(*index, place, "--json").stdout)["images"]
    assert all_images == 25
    done = command(*index, "--exclude", "0/", "--exclude", "/1/*", "--json")
    excluded = list(place.glob("[01]/*.png"))
    assert "left out 2 images and 1 folder by 0/, /1/*" in done.stderr
    assert f"dropped from the index: {len(excluded)} images that patterns leave out now" in done.stderr
    told = json.loads(done.stdout)
    assert (told["images"], told["new"], told["gone"]) == (25 - len(excluded), 0, len(excluded))
    shutil.copy(excluded[0], place / "0" / "new.png")
    shutil.copy(excluded[0], place / "2" / "new.png")
    moved = place.rename(place.parent / "moved")
    again = json.loads(command(*index, moved, "--json").stdout)
    assert again["images"] == 26 - len(excluded)
    back = json.loads(command(*index, "--exclude", "!*", "--json").stdout)
    assert back["images"] == 27


def test_a_run_keeps_its_patterns(command, place, tmp_path, without_report):
    quick = ["schedule.epochs=1", "sampler.m=2", "sampler.batch_size=4", "sampler.iterations=2", "data.split=image"]
    settings = [text for setting in quick for text in ("--set", setting)]
    settings += ["--set", f"data.name=folder:{place}", "--exclude", "[0-3]/", "--out", tmp_path / "run"]
    done = command("train", "pml/ntxent/digits", *settings)
    assert done.returncode == 0, done.stderr
    assert "left out 4 folders by [0-3]/" in " ".join(done.stderr.split())
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.warns(ExcludedImages, match=r"left out 4 folders by \[0-3\]/"):
        assert {path[0] for path in load_run(moved, "cpu").index(place).embedded.paths} == set("456789")


def test_a_folders_own_file_is_followed(make, place):
    run = make()
    (place / ".pml-ext-ignore").write_text("[0-5]/\n")
    with pytest.warns(ExcludedImages, match="left out 6 folders by .pml-ext-ignore"):
        embedded = run.embed_folder(place)
    assert {path[0] for path in embedded.paths} == {"6", "7", "8", "9"}
    with pytest.warns(ExcludedImages, match="left out 7 folders by .pml-ext-ignore, 9"):
        (collection,) = open_collections([run.folder], place, "cpu", lambda text: None, exclude=["9"])
    assert "9" not in collection.classes


@pytest.mark.parametrize(("name", "file", "left"), [("Zoe", "new.png", "this folder"), ("Noe", "x.png", "x.png")])
def test_an_enrolled_class_must_be_indexed(name, file, left, command, make, place, tmp_path):
    run = make(exclude=["Zoe/", "x.png"])
    with pytest.warns(ExcludedImages, match=": nothing matches 'Zoe/', 'x.png'"):
        run.index(place)
    photograph = shutil.copy(next(place.glob("3/*.png")), tmp_path / file)
    done = command("enroll", run.folder, photograph, "--as", name, "--store", place.parent / "store")
    assert f"--as {name}: the patterns of the index leave {left} out" in done.stderr
    assert not (place / name).exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["select", "RUN", "--exclude", "x"], "--exclude is for folders"),
        (["duplicates", "RUN", "--exclude", "x"], "--exclude is for folders"),
        (["browse", "RUN", "--exclude", "x"], "--exclude is for folders"),
        (["index", "RUN", "--check", "--pages"], "--exclude and --pages are for reading a folder"),
        (["embed", "RUN", "images.parquet", "--part", "1/1", "-o", "x", "--exclude", "x"], "--exclude is for folders"),
    ],
)
def test_patterns_without_a_folder_are_refused(command, runs, arguments, text):
    needed(arguments[0])
    done = command(*[runs[0] if word == "RUN" else word for word in arguments])
    assert (done.returncode, done.stdout) == (2, "")
    assert text in " ".join(done.stderr.split())


def test_pages_are_indexed_and_found(command, make, place, tmp_path):
    frames = [Image.open(path).copy() for path in sorted(place.glob("*/*.png"))[:3]]
    frames[0].save(place / "0" / "scan.tif", save_all=True, append_images=frames[1:])
    run = make()
    index = ("index", run.folder, "--store", place.parent / "store")
    assert json.loads(command(*index, place, "--json").stdout)["images"] == 26
    assert json.loads(command(*index, "--pages", "--json").stdout)["images"] == 28
    assert json.loads(command(*index, "--json").stdout)["as_before"] == 28
    assert command(*index, "--check").returncode == 0
    run = make()
    (answer,) = run.query(place / "0" / "scan.tif#2", 1)
    assert (answer.query_class, answer.distances[0] < 1e-3) == ("0", True)
    run.picture([answer]).savefig(tmp_path / "picture.png")
    assert "0/scan.tif#3" in run.indexed_images().paths
    assert (run.duplicates().images, run.duplicates().skipped) == (26, {})
    assert json.loads(command(*index, "--no-pages", "--json").stdout)["images"] == 26

"""What commands are given: a run, a folder, patterns and pages, vectors, a list of paths; what is refused."""

import itertools
import json
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_browse.collection import open_collections
from pml_ext_search import run_of_folder
from pml_ext_search.collection.problems import ExcludedImages
from pml_ext_search.commands.cluster import cluster
from pml_ext_search.commands.index import index
from pml_ext_search.commands.loading import read_list
from pml_ext_search.commands.query import query
from pml_ext_search.embedding import embedding
from pml_ext_search.run_of_folder import run_of
from pml_ext_search.trained import TrainedRun
from pml_ext_search.unlabeled import unlabeled

from .conftest import empty, garbage, halve
from .photographs import photograph


@pytest.fixture
def photos(tmp_path):
    place = tmp_path / "photos"
    (place / "inner").mkdir(parents=True)
    for number in range(6):
        photograph(number, side=32).convert("L").save(place / "inner" / f"{number}.png")
    return place


@pytest.fixture
def fits(runs, tmp_path, monkeypatch):
    """A service in place of ``fit``'s: its run, a copy of a trained one, and the folders that it is asked for."""
    run = shutil.copytree(runs[0], tmp_path / "run")
    asked = []
    fit = SimpleNamespace(run_of_folder=lambda folder, device, listener, exclude=None: asked.append(folder) or run)
    monkeypatch.setattr(run_of_folder, "service", lambda name, what: fit)
    return run, asked


def test_only_a_folder_of_images_gets_a_run(photos, fits):
    run, asked = fits
    assert run_of(photos, "cpu", None) == (run, photos)
    assert run_of(run, "cpu", None) == (run, None)
    with pytest.raises(DataError, match="0.png: a file, not the folder of a run or of images"):
        run_of(photos / "inner" / "0.png", "cpu", None)
    assert asked == [photos]


def test_a_folder_without_images_says_what_it_has(tmp_path, refused):
    place = tmp_path / "empty"
    place.mkdir()
    wanted = "neither a finished run nor images; wanted the folder of a run, or of .jpg, .png, ... files"
    with pytest.raises(DataError, match=f"empty: {wanted}, and found nothing"):
        run_of(place, "cpu", None)
    (place / "notes.txt").write_text("")
    for name, *more in (["index"], ["query", "x.jpg"], ["identify", "x.jpg"], ["cluster"], ["select"]):
        told = refused(name, place, *more)
        assert f"empty: {wanted}; found" in told
        assert "notes.txt: not named like an image" in told
    (place / "metrics.json").write_text("{}")  # what is left of a run
    assert run_of(place, "cpu", None) == (place, None)


@pytest.mark.usefixtures("fits")
def test_a_query_follows_its_folder(photos, capsys):
    def told():
        query(photos, [str(photos / "inner" / "0.png")], k=8, device="cpu", as_json=True)
        return capsys.readouterr()

    assert told().out.count("inner/") == 5 + 1
    photograph(7, side=32).convert("L").save(photos / "7.png")
    (photos / "inner" / "5.png").unlink()
    changed = told()
    assert '"7.png"' in changed.out
    assert "inner/5.png" not in changed.out
    assert f"{photos}: 1 new, 0 changed, 1 gone" in changed.err
    assert "new" not in told().err


@pytest.mark.usefixtures("fits")
def test_index_and_clusters_are_of_the_folder(photos, tmp_path, capsys):
    index(photos, device="cpu")
    assert "6 images indexed" in capsys.readouterr().out
    cluster(photos, clusters="2", out=tmp_path / "clusters", device="cpu")
    _, *rows = (tmp_path / "clusters" / "clusters.csv").read_text().splitlines()
    assert sorted(row.split(",")[0] for row in rows) == [f"inner/{number}.png" for number in range(6)]


def test_a_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder; wanted the folder of a run, or of images$"):
        run_of(tmp_path / "nowhere", "cpu", None)


def another_network(path):
    state = torch.load(path)
    torch.save(state | {"embedder": {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}}, path)


def with_entry(**entries):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *itertools.product(("network.json", "checkpoints/model.pt"), (empty, halve, garbage)),
        ("network.json", lambda path: path.write_text("[1, 2]")),
        ("network.json", with_entry(channels=2)),
        ("network.json", with_entry(image_size=1)),
        ("checkpoints/model.pt", another_network),
    ],
)
def test_a_damaged_run_names_what_to_type(runs, tmp_path, name, damage):
    run = shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("collection", "records", "figures"))
    damage(run / name)
    with pytest.raises(DataError) as caught:
        load_run(run, "cpu")
    text = str(caught.value)
    assert text.startswith(f"{run / name}: ")
    assert (f"type: pml-ext report {run}" if name == "network.json" else "--resume") in text
    assert "\n" not in text
    assert len(text) < 600


def test_a_list_has_a_path_in_each_line(tmp_path):
    names = ["a.png", "sub folder/b.png", os.fsdecode(b"caf\xe9.png")]
    (tmp_path / "list").write_bytes(os.fsencode("\n".join(names)) + b"\n\n")
    assert read_list(tmp_path / "list") == names
    with pytest.raises(ConfigError, match="--list .*none: cannot be read .No such file or directory"):
        read_list(tmp_path / "none")


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
        ("select RUN --exclude x", "--exclude is for folders"),
        ("duplicates RUN --exclude x", "--exclude is for folders"),
        ("browse RUN --exclude x", "--exclude is for folders"),
        ("index RUN --check --pages", "--exclude and --pages are for reading a folder"),
        ("embed RUN images.parquet --part 1/1 -o x --exclude x", "--exclude is for folders"),
    ],
)
def test_wrong_arguments_are_refused_at_once(command, indexed, folder, tmp_path, monkeypatch, line, text):
    needed(line.split()[0])
    if "--part" in line:
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    run, gallery = indexed
    monkeypatch.setattr(TrainedRun, "embed", lambda *_, **__: pytest.fail("embedded"))
    monkeypatch.setattr(embedding, "read_batches", lambda *_, **__: pytest.fail("embedded"))
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


def test_all_images_below_a_folder(tmp_path):
    for name in ("b.jpg", "a a.PNG", "inner/deeper/c.webp", ".hidden/d.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        photograph(0, side=16).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    splits = unlabeled(path=str(tmp_path))
    names = [path.relative_to(tmp_path).as_posix() for path in splits.train.paths]
    assert names == ["a a.PNG", "b.jpg", "inner/deeper/c.webp"]
    assert not splits.labeled
    assert splits.tested() == {}


def test_vectors_of_a_file_and_their_ids(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "rows.npz", embeddings=rows, ids=["a", "b", "c", "d"], labels=[0, 0, 1, 1])
    splits = unlabeled(tmp_path, "rows.npz")
    assert np.array_equal(splits.train.vectors.numpy(), rows)
    assert splits.train.ids.tolist() == ["a", "b", "c", "d"]
    assert splits.train.labels.tolist() == [0, 0, 0, 0]
    assert not splits.labeled


def test_too_few_images_are_named(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        unlabeled(tmp_path, "missing")
    with pytest.raises(DataError, match="no images; wanted files that end in .jpg, .png, ..., and found nothing"):
        unlabeled(path=str(tmp_path))
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"; found .*notes.txt: not named like an image"):
        unlabeled(path=str(tmp_path))
    photograph(0, side=16).save(tmp_path / "one.png")
    with pytest.raises(DataError, match="one image, one.png; a search needs at least two"):
        unlabeled(path=str(tmp_path))
    np.savez(tmp_path / "one.npz", embeddings=np.ones((1, 3), dtype=np.float32))
    with pytest.raises(DataError, match="1 vector; a search needs at least two"):
        unlabeled(tmp_path, "one.npz")


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
    line = COMMANDS[name].replace("RUN", str(run)).replace("FOLDER", str(place))
    done = command(name, *line.split(), "--exclude", "*")
    assert done.returncode != 0
    assert "photographs: no image is left; the patterns leave out 10 folders by *." in " ".join(done.stderr.split())


def test_an_index_keeps_its_patterns(command, json_of, make, place):
    run = make()
    index = ("index", run.folder, "--store", run.place)
    assert json_of(*index, place)["images"] == 25
    done = command(*index, "--exclude", "0/", "--exclude", "/1/*", "--json")
    excluded = list(place.glob("[01]/*.png"))
    assert "left out 2 images and 1 folder by 0/, /1/*" in done.stderr
    assert f"dropped from the index: {len(excluded)} images that patterns leave out now" in done.stderr
    told = json.loads(done.stdout)
    assert (told["images"], told["new"], told["gone"]) == (25 - len(excluded), 0, len(excluded))
    shutil.copy(excluded[0], place / "0" / "new.png")
    shutil.copy(excluded[0], place / "2" / "new.png")
    assert json_of(*index, place.rename(place.parent / "moved"))["images"] == 26 - len(excluded)
    assert json_of(*index, "--exclude", "!*")["images"] == 27


@pytest.mark.nightly
def test_a_run_keeps_its_patterns(command, place, tmp_path, without_report):
    quick = ["schedule.epochs=1", "sampler.m=2", "sampler.batch_size=4", "sampler.iterations=2", "data.split=image"]
    settings = [text for setting in [*quick, f"data.name=folder:{place}"] for text in ("--set", setting)]
    done = command("train", "pml/ntxent/digits", *settings, "--exclude", "[0-3]/", "--out", tmp_path / "run")
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


def test_pages_are_indexed_and_found(command, json_of, make, place, tmp_path):
    frames = [Image.open(path).copy() for path in sorted(place.glob("*/*.png"))[:3]]
    frames[0].save(place / "0" / "scan.tif", save_all=True, append_images=frames[1:])
    run = make()
    index = ("index", run.folder, "--store", run.place)
    assert json_of(*index, place)["images"] == 26
    assert json_of(*index, "--pages")["images"] == 28
    assert json_of(*index)["as_before"] == 28
    assert command(*index, "--check").returncode == 0
    run = make()
    (answer,) = run.query(place / "0" / "scan.tif#2", 1)
    assert (answer.query_class, answer.distances[0] < 1e-3) == ("0", True)
    run.picture([answer]).savefig(tmp_path / "picture.png")
    assert "0/scan.tif#3" in run.indexed_images().paths
    assert (run.duplicates().images, run.duplicates().skipped) == (26, {})
    assert json_of(*index, "--no-pages")["images"] == 26

"""The index: made, updated, checked; of features and of first dimensions; whole or refused, whatever becomes of it."""

import json
import os
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.collection.database import Transaction
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding.embedding import SEVERAL, ImageEmbedder

from .conftest import empty, flip, garbage, halve, ids_of, made_up, trained

UNKNOWN = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)


class Killed(BaseException):
    """A process does not live to handle it."""


def kill_at(patch, step):
    """Let the disk do ``step`` things, and nothing from then on."""
    done = []

    def deadly(real):
        def call(*arguments, **options):
            if len(done) >= step:
                raise Killed
            done.append(real)
            return real(*arguments, **options)

        return call

    for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink"), (Transaction, "save")):
        patch.setattr(place, name, deadly(getattr(place, name)))


def check_whole(run, folders):
    """The index is that of one of the folders: paths, embeddings, and what faiss finds."""
    folder = run.gallery().folder
    assert folder in folders
    embedded = run.gallery().embedded
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.png"))]
    assert sorted(embedded.paths) == paths
    points = run.embed([folder / path for path in embedded.paths])
    torch.testing.assert_close(embedded.embeddings, points, rtol=0, atol=1e-5)
    (answer,) = run.query(UNKNOWN, len(paths))
    distances = (points - run.embed(UNKNOWN)).norm(dim=1)
    assert answer.distances == pytest.approx(distances.sort().values.tolist(), abs=1e-3)
    found = [distances[embedded.paths.index(path)].item() for path in answer.paths]
    assert found == pytest.approx(answer.distances, abs=1e-3)
    return folder


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_a_kill_leaves_a_whole_index(make, few, tmp_path, factory):
    seen = []
    make("old").index(few[0], factory)
    for step in range(40):
        shutil.copytree(tmp_path / "old", tmp_path / str(step))
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, step)
                make(str(step)).index(few[1], factory)
            break
        except Killed:
            seen.append(check_whole(make(str(step)), few))
            make(str(step)).index(few[1], factory)
            assert check_whole(make(str(step)), few) == few[1]
            names = {path.name for path in (tmp_path / str(step)).iterdir()} - {".lock"}
            assert len(names) == (3 if factory else 2), f"left-overs: {names}"
    assert len(seen) >= 3
    assert seen == sorted(seen, reverse=True), "the new index stands from some step on"  # "old" > "new"
    assert set(seen) == ({*few} if factory else {few[0]})


def test_an_overtaken_reader_reads_the_new_index(make, few, monkeypatch):
    """Between the embedding of its query and the search."""
    run = make()
    gallery = run.index(few[0], "IVF2,Flat")
    real = ImageEmbedder.embed

    def overtaken(self, images):
        monkeypatch.setattr(ImageEmbedder, "embed", real)
        make().index(few[1], "IVF2,Flat")
        return real(self, images)

    monkeypatch.setattr(ImageEmbedder, "embed", overtaken)
    queries = sorted(few[1].glob("*/*.png"))[-SEVERAL:]  # fewer are embedded in the transaction that searches
    *_, answer = run.query(queries, 24)
    assert len({*answer.paths}) == 24
    assert gallery.folder == few[1].resolve()
    assert len(gallery) == 25
    assert check_whole(run, few) == few[1]


@pytest.mark.parametrize(
    ("pattern", "damage", "lost"),
    [
        *(("images.sqlite", damage, 20) for damage in (halve, empty, Path.unlink, garbage)),
        *(("vectors.f32", damage, lost) for damage, lost in ((halve, 10), (empty, 20), (Path.unlink, 20))),
        *(("*.faiss", damage, 0) for damage in (halve, empty, Path.unlink, garbage, flip)),
    ],
)
def test_a_damaged_file_names_its_remedy(command, make, few, tmp_path, pattern, damage, lost):
    """A query changes nothing of it; who embeds the folder computes the lost embeddings again, with a word."""
    run = make("an index")
    place = run.place
    before = run.index(few[0], "IVF2,Flat").embedded.embeddings.clone()
    (path,) = place.glob(pattern)
    damage(path)
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(DataError) as caught:
        make("an index").gallery()
    with warnings.catch_warnings(action="ignore", category=StoreWarning):
        make("an index").embed(next(few[0].glob("*/*.png")))
    assert {path.name: path.read_bytes() for path in place.iterdir()} == files
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    line = shlex.split(text.partition("type: pml-ext ")[2])
    assert line[:2] == ["index", str(run.folder)]
    assert line[line.index("--store") + 1] == str(place)
    shutil.copytree(place, tmp_path / "copy")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        again = make("copy").embed_folder(few[0])
    told = [str(warning.message) for warning in heard]
    assert (again.new, len(told)) == (lost, bool(lost))
    assert all(text.startswith(f"{tmp_path / 'copy'}: ") and "damaged" in text and "\n" not in text for text in told)
    torch.testing.assert_close(again.embeddings, before, rtol=0, atol=1e-5)
    command(*(str(few[0]) if word == "FOLDER" else word for word in line))
    assert check_whole(make("an index"), few) == few[0]


def test_a_query_reads_its_answers_rows_alone(make, tmp_path, monkeypatch):
    points = torch.nn.functional.normalize(torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0)))
    paths = [f"class {number % 50}/{number:05d}.png" for number in range(len(points))]
    made_up(make(), points, paths=paths)
    read = []
    real = Transaction.images
    monkeypatch.setattr(
        Transaction, "images", lambda self, *where: (read.append(row) or row for row in real(self, *where))
    )
    run = make()
    gallery = run.gallery()
    assert run.gallery() is gallery
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / "store" / "vectors.f32") in Path("/proc/self/maps").read_text()
    with pytest.warns(UserWarning, match=r"the indexed folder /photos is gone or moved; type: pml-ext index"):
        (answer,) = run.query(UNKNOWN, 10)
    assert len(answer.paths) == 10
    assert len(read) <= 11
    assert gallery.embedded.paths == paths
    assert gallery.embedded.classes[-1] == "class 49"
    assert len(gallery) == 20_000


def test_a_missing_index_names_the_command(make, folder):
    own = make()
    for _ in range(2):
        with pytest.raises(DataError, match=r"store: no index; type: pml-ext index .*one FOLDER --store .*store"):
            own.gallery()
        own.embed(sorted((folder / "0").iterdir()))  # a collection, without an index


@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "0/../../outside.png", "", "a//b.png"])
def test_paths_of_an_index_stay_in_its_folder(make, name):
    """None is given of an index that was made by other means."""
    run = make()
    made_up(run, torch.eye(64), paths=[name, *(f"{number}.png" for number in range(63))])
    with pytest.raises(DataError, match=r"is not in the folder that was indexed\); type: pml-ext index"):
        run.query(UNKNOWN, 64)


def test_workers_that_the_index_starts_read_the_same(command, make, folder):
    other = make("by workers")
    command("index", other.folder, folder, "--workers", 2, "--store", other.place)
    one, other = (make(store, workers=0).embed_folder(folder) for store in ("store", "by workers"))
    assert (one.new, other.new) == (200, 0)
    torch.testing.assert_close(one.embeddings, other.embeddings, rtol=0, atol=1e-5)


def test_check_reads_what_opening_does_not(command, refused, make, few, monkeypatch):
    run = make()
    place = run.index(few[0], "IVF2,Flat").place
    monkeypatch.setattr("pml_ext_search.collection.collection._MAX_HASHED_BYTES", 100)
    check = ("index", run.folder, "--store", place, "--check")
    for name in ("*.faiss", "vectors.f32"):
        (path,) = place.glob(name)
        whole = path.read_bytes()
        flip(path)
        assert len(make().gallery()) == 20
        told = refused(*check)
        assert "empty, cut or damaged" in told
        assert "type: pml-ext index" in told
        path.write_bytes(whole)
    assert command(*check).returncode == 0
    flip(path)
    with pytest.warns(StoreWarning, match="embeddings of 1 image were damaged; embedded again"):
        assert make().embed_folder(few[0]).new == 1


def test_indexing_again_finds_new_changed_and_gone_images(command, json_of, make, few, tmp_path):
    run = make()
    images = shutil.copytree(few[1], tmp_path / "images")
    odd = os.fsdecode(b"0/caf\xe9 $1.png")
    files = sorted(images.glob("*/*.png"))
    shutil.copy(files[0], images / odd)
    line = ("index", run.folder, "--store", run.place)
    told = json_of(*line, images)
    assert (told["images"], told["new"], told["as_before"]) == (26, 26, 0)
    before = ids_of(run)
    assert sorted(before.values()) == list(range(26))
    files[2].unlink()
    shutil.copy(files[4], files[3])
    for name in ("zero", "one"):
        shutil.copy(files[5], images / f"{name}.png")
    assert command(*line).stdout.splitlines()[1] == "2 new, 1 changed, 1 gone, 24 as before"
    after = ids_of(run)
    assert {path: number for path, number in after.items() if number < 26}.items() <= before.items()
    assert {after["zero.png"], after["one.png"]} == {26, 27}
    scratch = make("scratch").index(images).embedded
    again = make().gallery().embedded
    assert sorted(again.paths) == sorted(scratch.paths)
    assert odd in again.paths
    rows = [again.paths.index(path) for path in scratch.paths]
    torch.testing.assert_close(again.embeddings[rows], scratch.embeddings, rtol=0, atol=1e-5)
    stats = [(images / path).stat() for path in again.paths]
    assert [[about.st_size, about.st_mtime_ns] for about in stats] == again.stats.tolist()
    assert make().embed_folder(images).new == 0
    (images / "zero.png").unlink()
    command(*line)
    shutil.copy(files[5], images / "zero.png")
    told = json_of(*line)
    assert [told[key] for key in ("new", "changed", "gone", "as_before")] == [1, 0, 0, 26]
    assert ids_of(run)["zero.png"] == 28, "an id is never used again"


def test_check_names_gone_and_changed_images(command, make, few, tmp_path):
    run = make()
    images = shutil.copytree(few[0], tmp_path / "images")
    run.index(images)
    files = sorted(images.glob("*/*.png"))
    files[0].unlink()
    shutil.copy(files[1], files[2])
    done = command("index", run.folder, "--store", run.place, "--check", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["gone"], told["changed"]) == (["0/0000.png"], [files[2].relative_to(images).as_posix()])
    assert "1 images gone and 1 changed since they were indexed; type: pml-ext index" in done.stderr
    query = images.rename(tmp_path / "moved") / files[1].relative_to(images)
    done = command("query", run.folder, query, "--store", run.place, "--json", "-k", 3)
    assert len(json.loads(done.stdout)[0]["paths"]) == 3
    assert f"the indexed folder {images} is gone or moved" in done.stderr


@pytest.fixture(scope="module")
def indexed_run(few, tmp_path_factory):
    """A run with fewer dimensions than features, whose collection has the features of a folder."""
    place = tmp_path_factory.mktemp("by features") / "run"
    quick = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=2", "model.embedding_size=16")
    trained("triplets/digits", place, *quick, "model.trunk.width=8")
    load_run(place, "cpu", by="features").index(few[0])
    return place


def test_vectors_are_the_normalized_features(indexed_run, few):
    run = load_run(indexed_run, "cpu")
    assert (run.by, run.gallery().by) == ("features", "features")
    embedded = run.gallery().embedded
    images = torch.stack([run.images.computed.prepared(few[0] / path) for path in embedded.paths])
    with torch.no_grad():
        expected = nn.functional.normalize(run.network.trunk(images))
    assert expected.shape[1] == run.network.features != run.network.embedding_size
    torch.testing.assert_close(embedded.embeddings, expected, rtol=0, atol=1e-5)


def test_commands_follow_the_collections_kind(indexed_run, few, tmp_path, command, json_of, text_of):
    photo = next(few[1].glob("*/*.png"))
    (answer,) = json_of("query", indexed_run, photo, "-k", 3)
    run = load_run(indexed_run, "cpu")
    assert answer["paths"] == run.query(photo, k=3)[0].paths
    difference = run.embed(photo) - run.embed(few[0] / answer["paths"][0])
    assert float(difference.norm()) == pytest.approx(answer["distances"][0], abs=1e-5)
    about = json_of("index", indexed_run)
    assert (about["by"], about["new"], about["as_before"]) == ("features", 0, 20)
    told = text_of("index", indexed_run, "--by", "features")
    assert told.startswith("20 images indexed by the features before the head: ")
    assert command("index", indexed_run, "--check").returncode == 0
    assert text_of("cluster", indexed_run, few[0], "--clusters", 2, "-o", tmp_path / "clusters")


def test_a_mixed_use_names_the_remedy(indexed_run, few, command, tmp_path):
    photo = next(few[1].glob("*/*.png"))
    for arguments in (
        ("query", indexed_run, photo),
        ("query", indexed_run, few[1], "-o", tmp_path / "answers.jsonl"),
        ("index", indexed_run, few[0]),
        ("index", indexed_run, "--check"),
        ("cluster", indexed_run, few[0], "--clusters", 2),
        ("embed", indexed_run, few[0], "-o", tmp_path / "all.npz"),
    ):
        done = command(*arguments, "--by", "embeddings")
        assert done.returncode == 2, arguments
        assert "has the features of images, not their embeddings; leave out --by" in done.stderr
        assert done.stderr.count("\n") == 1
    with pytest.raises(ConfigError, match="not their embeddings; leave out --by, type --store FOLDER"):
        load_run(indexed_run, "cpu", by="embeddings").embed([photo])
    assert len(load_run(indexed_run, "cpu").gallery()) == 20  # it is as it was


@pytest.mark.parametrize("damage", [empty, garbage, Path.unlink])
@pytest.mark.parametrize("kind", [("--by", "features"), ("--size", 5)])
def test_a_damaged_collection_stays_of_its_kind(few, indexed_run, tmp_path, json_of, refused, damage, kind):
    store = ("--store", tmp_path / "store")
    before = json_of("index", indexed_run, few[0], *kind, *store)
    damage(tmp_path / "store" / "images.sqlite")
    assert refused("query", indexed_run, next(few[1].glob("*/*.png")), *store).endswith(f" {kind[0]} {kind[1]}")
    about = json_of("index", indexed_run, few[0], *store)
    assert (about["by"], about["size"]) == (before["by"], before["size"])


def test_parts_of_features_are_not_indexed_as_embeddings(indexed_run, few, tmp_path, command, refused):
    pytest.importorskip("pyarrow", reason="the extra [parquet] is not installed")
    parts = tmp_path / "parts"
    store = ("--store", tmp_path / "store")
    command("embed", indexed_run, few[0], "--part", "1/1", "-o", parts, "--by", "features")
    told = refused("index", indexed_run, "--from", parts, "--by", "embeddings", *store)
    assert told.endswith("the features of images, not their embeddings; type --by features")
    command("index", indexed_run, "--from", parts, "--by", "features", *store)
    run = load_run(indexed_run, "cpu", store=tmp_path / "store")
    assert run.gallery().embedded.embeddings.shape[1] == run.network.features


@pytest.fixture
def shortened(make, few):
    """A run whose collection has 16 of 64 dimensions."""
    return make(size=16, indexed=few[0])


def test_shortened_embeddings_have_length_one(shortened, make, few):
    whole = make("whole").embed_folder(few[0])
    expected = normalize(whole.embeddings[:, :16])
    torch.testing.assert_close(shortened.gallery().embedded.embeddings, expected, rtol=0, atol=1e-6)
    photo = next(few[1].glob("*/*.png"))
    run = make()  # follows the collection
    point = run.embed(photo)[0]
    torch.testing.assert_close(point, normalize(make("whole").embed(photo)[0, :16], dim=0), rtol=0, atol=1e-6)
    (answer,) = run.query(photo, 5)
    distances = (expected - point).norm(dim=1)
    others = [place for place in distances.argsort().tolist() if photo.name not in whole.paths[place]]
    assert answer.paths == [whole.paths[place] for place in others[:5]]
    assert answer.distances == pytest.approx(distances[others[:5]].tolist(), abs=1e-5)


def test_an_update_keeps_the_size(shortened, few, command, json_of):
    own = ("--store", shortened.place)
    about = json_of("index", shortened.folder, few[1], *own)
    assert (about["size"], about["images"], about["new"]) == (16, 25, 25)
    done = command("index", shortened.folder, *own, "--size", 16)
    assert "by the first 16 dimensions: " in done.stdout
    assert "the first dimensions are no better than others" in done.stderr  # neither nested nor in closed form


def test_printed_commands_accept_a_shorter_index(shortened, tmp_path, few, command, text_of):
    images = shutil.copytree(few[1], tmp_path / "images")
    own = ("--store", shortened.place)
    command("index", shortened.folder, images, *own)
    done = text_of("enroll", shortened.folder, "--rename", next(images.iterdir()).name, "other", *own)
    assert "moved to" in text_of(*shlex.split(done.partition("to undo: pml-ext ")[2]))
    collection = shortened.search_index.collection
    for printed in (collection.command(), collection.check_command(), collection.index_command("--check")):
        again = command(*shlex.split(printed)[1:])
        assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--size 32", "has 16 dimensions of each embedding, not 32; leave out --size"),
        ("--size 64", "has 16 dimensions of each embedding, not all; leave out --size"),
        ("--size 65", "--size 65: the embeddings of RUN have 64 dimensions; type 1 to 64"),
        ("--size 0", "--size 0: the embeddings of RUN have 64 dimensions; type 1 to 64"),
        ("--size 16 --by features", "the dimensions of features have no order; leave it out"),
        ("--by features", "has the embeddings of images, not their features; leave out --by"),
        ("--size 16 --from parts", "while they are computed, and --from has them; leave out --size"),
        ("--size 16 --check", "--check changes nothing; leave out FOLDER, --index, --from, --size and --to"),
    ],
)
def test_another_size_names_the_remedy(shortened, few, command, options, text):
    folder = () if "--check" in options else (few[0],)
    done = command("index", shortened.folder, *folder, "--store", shortened.place, *options.split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text.replace("RUN", str(shortened.folder)) in done.stderr

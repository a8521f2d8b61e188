"""The index of a collection: whole or refused, whatever becomes of its files and of who writes them."""

import os
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext_search.collection.database import Transaction
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding.embedding import SEVERAL, ImageEmbedder

from .conftest import empty, flip, garbage, halve, made_up

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
    gallery = run.gallery()
    folder = gallery.folder
    assert folder in folders
    embedded = gallery.embedded
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
    place = tmp_path / "an index"
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
    done = command(*(str(few[0]) if word == "FOLDER" else word for word in line))
    assert done.returncode == 0, done.stderr
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

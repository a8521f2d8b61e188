"""Collections of the first dimensions of embeddings: made, updated, queried, and never mixed with whole ones."""

import json
import shlex
import shutil

import pytest
import torch
from torch.nn.functional import normalize


@pytest.fixture
def shortened(make, few):
    """A run whose collection has 16 of 64 dimensions."""
    run = make(size=16)
    run.index(few[0])
    return run


def test_shortened_embeddings_have_length_one(shortened, make, few):
    whole = make("whole").embed_folder(few[0])
    embedded = shortened.gallery().embedded
    expected = normalize(whole.embeddings[:, :16])
    torch.testing.assert_close(embedded.embeddings, expected, rtol=0, atol=1e-6)
    photo = next(few[1].glob("*/*.png"))
    run = make()  # follows the collection
    point = run.embed(photo)[0]
    torch.testing.assert_close(point, normalize(make("whole").embed(photo)[0, :16], dim=0), rtol=0, atol=1e-6)
    (answer,) = run.query(photo, 5)
    distances = (expected - point).norm(dim=1)
    others = [place for place in distances.argsort().tolist() if photo.name not in whole.paths[place]]
    assert answer.paths == [whole.paths[place] for place in others[:5]]
    assert answer.distances == pytest.approx(distances[others[:5]].tolist(), abs=1e-5)


def test_an_update_keeps_the_size(shortened, few, command):
    own = ("--store", shortened.place)
    about = json.loads(command("index", shortened.folder, few[1], *own, "--json").stdout)
    assert (about["size"], about["images"], about["new"]) == (16, 25, 25)
    done = command("index", shortened.folder, *own, "--size", 16)
    assert "by the first 16 dimensions: " in done.stdout
    assert "the first dimensions are no better than others" in done.stderr  # neither nested nor in closed form


def test_printed_commands_accept_a_shorter_index(shortened, tmp_path, few, command):
    images = shutil.copytree(few[1], tmp_path / "images")
    own = ("--store", shortened.place)
    command("index", shortened.folder, images, *own)
    done = command("enroll", shortened.folder, "--rename", next(images.iterdir()).name, "other", *own)
    undo = shlex.split(done.stdout.partition("to undo: pml-ext ")[2])
    assert "moved to" in command(*undo).stdout, done.stderr
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

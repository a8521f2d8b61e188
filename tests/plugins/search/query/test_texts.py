"""Queries by texts, compared with a slow loop over the features that a small pair gives itself."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext_fit.commands import fit
from pml_ext_search.commands.query import query
from pml_ext_search.query.texts import features_gallery

from ....overrides import typed
from ...train.conftest import own_cache  # noqa: F401 (a fixture)
from ...train.networks.pairs import own_image_features, own_text_features, saved_pair
from ..photographs import photograph

TEXTS = ["a red car", "the blue house on the hill"]


@pytest.fixture
def photos(tmp_path):
    """A flat folder of twelve photographs."""
    place = tmp_path / "my photos"
    place.mkdir()
    generator = np.random.default_rng(0)
    for number in range(12):
        pixels = generator.integers(0, 255, size=(4, 6, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((60, 40), Image.BICUBIC).save(place / f"{number}.png")
    return place


def ranked_by_the_pair(model, run, photos, text, kind):
    """Paths and distances, nearest first, by the pair's own features of each photograph and of the text."""
    towards = own_text_features(model, [text], kind)[0].double()
    found = []
    for file in sorted(photos.glob("*.png")):
        pixels = run.images.computed.transform(torch.tensor(np.array(Image.open(file))).permute(2, 0, 1))
        features = own_image_features(model, pixels[None])[0].double()
        distance = float((features / features.norm() - towards / towards.norm()).norm())
        found.append((distance, file.name))
    return sorted(found)


@pytest.mark.parametrize("head", ["none", "pca"])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_photographs_are_ranked_by_the_pairs_features(photos, tmp_path, kind, head):
    """Behind a head that changes the vectors of images, texts are compared with the features before it."""
    model = saved_pair(tmp_path / "pair", kind)
    size = 32 if kind == "siglip" else 24
    settings = [] if head == "none" else ["model.embedder=pca", "model.embedding_size=8"]
    fit(photos, out=tmp_path / "run", device="cpu", trunk=str(tmp_path / "pair"), overrides=typed(settings))
    run = load_run(tmp_path / "run", "cpu")
    assert run.images.size == (8 if head == "pca" else size)
    answers = run.query_texts(TEXTS, k=12)
    for answer, text in zip(answers, TEXTS, strict=True):
        wanted = ranked_by_the_pair(model, run, photos, text, kind)
        assert answer.query == text
        assert answer.paths == [name for _, name in wanted]
        assert answer.distances == pytest.approx([distance for distance, _ in wanted], abs=1e-5)
    assert (run.place.with_name("collection-features").exists()) == (head == "pca")
    near = run.query_texts(TEXTS[:1], k=12, radius=answers[0].distances[3] + 1e-6)
    assert near[0].paths == answers[0].paths[:4]


def test_features_beside_a_head_follow_the_index(photos, tmp_path):
    saved_pair(tmp_path / "pair")
    settings = typed(["model.embedder=pca", "model.embedding_size=8"])
    fit(photos, out=tmp_path / "run", device="cpu", trunk=str(tmp_path / "pair"), overrides=settings)
    run = load_run(tmp_path / "run", "cpu")
    assert len(features_gallery(run.loaded, run.search_index)) == 12
    photograph(99, side=48).save(photos / "new.png")
    run.index()
    assert "new.png" in run.query_texts(["car"], k=13)[0].paths


def test_texts_are_compared_with_whole_features(photos, tmp_path):
    saved_pair(tmp_path / "pair")
    fit(photos, out=tmp_path / "run", device="cpu", trunk=str(tmp_path / "pair"))
    run = load_run(tmp_path / "run", "cpu", store=tmp_path / "short", size=5)
    run.index(photos)
    assert run.query_texts(TEXTS, k=12) == load_run(tmp_path / "run", "cpu").query_texts(TEXTS, k=12)


def test_the_command_prints_answers_to_texts(photos, tmp_path, capsys):
    saved_pair(tmp_path / "pair")
    fit(photos, out=tmp_path / "run", device="cpu", trunk=str(tmp_path / "pair"))
    capsys.readouterr()
    query(photos, text=["a red car"], k=3, device="cpu", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["query"] == "a red car"
    assert found["paths"] == load_run(tmp_path / "run", "cpu").query_texts(["a red car"], 3)[0].paths
    query(tmp_path / "run", text=["a red car", "house"], k=2, device="cpu")
    assert (tmp_path / "run" / "query.png").is_file()
    for wrong in ({"images": ["x.png"]}, {"rerank": "average"}, {"metric": "learned"}, {"store": "lancedb:x"}):
        with pytest.raises(ConfigError, match="--text is looked for in the features of the run's own index; leave out"):
            query(tmp_path / "run", text=["a red car"], device="cpu", **wrong)
    small = ["model.trunk=convnet", "model.trunk.weights=random", "model.embedding_size=64"]
    small += ["data.images.resize=16", "data.images.crop=16"]
    fit(photos, out=tmp_path / "other", device="cpu", overrides=typed(small))
    with pytest.raises(ConfigError, match="the trunk convnet has no text encoder; type: .*--trunk hf/PAIR"):
        query(tmp_path / "other", text=["a red car"], device="cpu")

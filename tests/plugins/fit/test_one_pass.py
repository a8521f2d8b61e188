"""Features that are computed once: broken files, and passes that go on."""

import pytest
import torch

from pml_ext_fit import one_pass
from pml_ext_train.recipe import build_dataset, load_recipe, preprocessing_of
from pml_ext_train.training.features import FeatureCache

from ..search.photographs import photograph

SMALL = {
    "model.trunk": "convnet",
    "model.trunk.weights": "random",
    "model.embedding_size": 64,
    "data.images.resize": 16,
    "data.images.crop": 16,
}


@pytest.fixture
def images(tmp_path):
    """A folder of five photographs, a cut file and an empty one."""
    for number in range(5):
        photograph(number, side=32).save(tmp_path / f"{number}.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:200])
    (tmp_path / "empty.png").write_bytes(b"")
    return tmp_path


def keep(folder, progress=lambda now: None):
    recipe = load_recipe("fit/unlabeled", {"data.path": str(folder), **SMALL})
    splits = build_dataset(recipe.data, None)
    preprocessing, _ = preprocessing_of(recipe, splits)
    torch.manual_seed(0)  # of the trunk's weights
    return one_pass.keep_features(recipe, splits.train, preprocessing, "cpu", lambda line: None, progress)


def test_unreadable_files_are_left_out_and_named(images, monkeypatch):
    monkeypatch.setattr(one_pass, "PART", 2)
    found = keep(images)
    assert [path.name for path in found.readable.paths] == [f"{number}.png" for number in range(5)]
    assert sorted(path.rpartition("/")[2] for path in found.unreadable) == ["cut.png", "empty.png"]
    assert found.note.startswith("left out 2 images that cannot be read: ")
    assert "cut.png: not a readable image" in found.note


def test_a_pass_goes_on_where_it_was_interrupted(images, monkeypatch):
    monkeypatch.setattr(one_pass, "PART", 2)
    seen = []

    def interrupt(now):
        seen.append(now.done)
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(images, interrupt)
    computed = []
    of = FeatureCache.of
    monkeypatch.setattr(FeatureCache, "of", lambda self, part, view=0: computed.extend(part.paths) or of(self, part))
    found = keep(images)
    assert seen == [2, 4]
    assert [path.name for path in computed] == ["4.png", *(f"{number}.png" for number in range(5))]
    assert found.features.shape == (64,)
    assert len(found.features) == 5

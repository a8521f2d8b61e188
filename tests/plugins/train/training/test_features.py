"""Frozen trunks: cached features equal the trunk in the loop, and nothing wrong is ever taken from the cache."""

import contextlib
import shutil
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding import folder_pass, reading
from pml_ext_search.trained import load_run
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import reported_phases
from pml_ext_train.training import FeatureCache, FeatureReader, Features, epoch_batches, load, open_run

from ....overrides import typed
from ...search.conftest import flip, full
from .made_up_photos import write_photos
from .whole_runs import assert_close_networks, built, finished


@pytest.mark.usefixtures("without_report")
def test_cached_features_equal_a_frozen_trunk(tmp_path):
    """100 iterations; with dropout and a batch norm in the head, whose random numbers and statistics are alike."""
    head = ["data.augment.shift=0", "model.embedder=mlp", "model.hidden_sizes=[16]", "model.norm=batch"]
    looped, metrics = finished(tmp_path / "loop", *head, "model.dropout=0.2", 'model.freeze=["*"]')
    cached, same = finished(tmp_path / "cache run", *head, "model.dropout=0.2", "model.freeze=trunk")
    assert_close_networks(looped, cached, 1e-5)
    for phase in ("raw", "before", "after"):
        assert same[phase] == pytest.approx(metrics[phase], abs=1e-6), phase
    assert {"frozen", "pca"} <= set(same)
    assert "trunk" not in load(tmp_path / "cache run" / "checkpoints" / "last.pt")["parts"]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("name", "size"), [("none", 32), ("pca", 8)])
def test_without_anything_to_train_the_trunk_is_tested(tmp_path, name, size):
    head = (f"model.embedder={name}", f"model.embedding_size={size}")
    state, metrics = finished(tmp_path / "run", "model.freeze=trunk", *head)
    assert metrics["after"] == pytest.approx(metrics["pca" if name == "pca" else "frozen"])
    assert state["epoch"] == 0


@pytest.mark.usefixtures("without_report")
def test_features_before_a_trained_head_are_tested(tmp_path):
    _, without = finished(tmp_path / "first")
    weights = tmp_path / "first" / "checkpoints" / "model.pt"
    _, metrics = finished(tmp_path / "second", f"model.trunk.weights={weights}")
    assert "features" not in without
    view = open_run(tmp_path / "second", 0, "cpu")
    features = nn.functional.normalize(view.embeddings("test", "trunk"))
    labels = view.true_labels("test")
    nearest = torch.cdist(features, features).fill_diagonal_(torch.inf).argmin(dim=1)
    right = (labels[nearest] == labels).double().mean()
    assert metrics["features"]["recall_at_1"] == pytest.approx(float(right), abs=0.004)
    assert {"frozen", "pca", "nmi"} <= {*metrics, *metrics["features"]}
    assert reported_phases(view.recipe) == ["after", "features", "raw", "before", "frozen", "pca", "within_class"]


# The cache


class Counted(nn.Module):
    """The mean of each channel; counts the images that it saw, and is interrupted after the most that it may see."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.seen = 0
        self.most = 99

    def forward(self, images):
        if self.seen >= self.most:
            raise KeyboardInterrupt
        self.seen += len(images)
        return self.factor * images.float().mean((2, 3))


def cache(trunk, about="steps", batch_size=4):
    return FeatureCache(trunk, 3, about, torch.device("cpu"), batch_size)


def photographs(folder):
    if not folder.exists():
        folder.mkdir()
        for number in range(10):
            Image.new("RGB", (8, 8), (number, 2 * number, 3 * number)).save(folder / f"{number}.png")
    return LabeledImages(sorted(folder.glob("*.png")), np.zeros(10), ["one"])


def test_each_feature_is_computed_only_once(tmp_path):
    images = photographs(tmp_path / "photos")
    trunk = Counted()
    wanted = torch.stack([images.image(index).float().mean((1, 2)) for index in range(10)])
    for _ in range(2):
        features = cache(trunk).of(images)
        assert torch.equal(features[torch.arange(10)], wanted)
        assert trunk.seen == 10
    assert torch.equal(cache(trunk).of(images.subset([7, 2]))[:], wanted[[7, 2]])
    assert trunk.seen == 10
    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "photos" / "3.png")  # a changed file
    assert cache(trunk).of(images)[3][0] == 200
    assert trunk.seen == 11
    other = Counted(2.0)  # other weights
    assert torch.equal(cache(other).of(images)[0:2], 2 * wanted[:2])
    cache(other, about="other steps").of(images)
    cache(other).of(images, view=1)
    assert other.seen == 30
    other.extra_repr = lambda: "pooling='max'"  # a setting without parameters
    cache(other).of(images)
    assert other.seen == 40
    other.extra_repr = lambda: f"of {object()}"  # an address, another one each time
    for _ in range(2):
        cache(other).of(images)
        assert other.seen == 50
    if (maps := Path("/proc/self/maps")).exists():  # the features are mapped, not loaded
        assert "vectors.f32" in maps.read_text()


def test_a_killed_process_loses_one_batch(tmp_path):
    images = photographs(tmp_path / "photos")
    broken = Counted()
    trunk = Counted()
    broken.most = 8
    with pytest.raises(KeyboardInterrupt):
        cache(broken).of(images)
    assert cache(trunk).of(images)[:][:, 1].tolist() == [2 * number for number in range(10)]
    assert trunk.seen == 2


def test_equal_images_in_memory_have_one_feature():
    pixels = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 5, 5)[[0, 1, 1, 2]]
    trunk = Counted()
    features = cache(trunk).of(LabeledImages(pixels, [0, 1, 1, 2], ["a", "b", "c"]))
    assert features[:][:, 0].tolist() == [0, 1, 1, 2]
    assert trunk.seen == 3


def test_what_is_wrong_is_not_kept(tmp_path, monkeypatch):
    images = photographs(tmp_path / "photos")
    trunk = Counted(float("nan"))
    with pytest.raises(DataError, match=r"model\.trunk gives NaN or infinity for 4 images, .*0\.png first"):
        cache(trunk).of(images)
    trunk = Counted()
    cache(trunk).of(images)
    flip(cache(trunk).store.folder / "vectors.f32", 17)
    with pytest.warns(UserWarning, match="features of 1 images were damaged"):
        assert cache(trunk).of(images)[1][0] == 1
    assert trunk.seen == 11
    monkeypatch.setattr("pml_ext_train.training.feature_store.os.fsync", full)
    with (
        pytest.warns(UserWarning, match="features are not cached for other runs"),
        pytest.raises(UnwritableError, match=r"vectors\.f32: cannot be written \(No space left on device\)"),
    ):
        cache(Counted(3.0)).of(images)  # the disk of temporary files is full too


def test_locked_stores_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.feature_store._WAIT", 0.0)
    images = photographs(tmp_path / "photos")
    trunk = Counted()
    shared = cache(trunk)
    shared.of(images)
    place = shared.store.folder
    with contextlib.closing(sqlite3.connect(place / "keys.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match="not cached for other runs: .*locked.*set XDG_CACHE_HOME"):
            features = shared.of(images)
    assert features[:][:, 0].tolist() == list(range(10))
    assert trunk.seen == 20
    cache(trunk).of(images)
    assert trunk.seen == 20  # the shared store has its features still


def test_processes_that_miss_the_store_are_refused(tmp_path, monkeypatch):
    """Its cache is another folder, as on another machine."""
    first = cache(Counted()).store.folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    second = cache(Counted())
    assert second.store.folder != first
    for name, double in {
        "num_processes": lambda: 2,
        "rank": lambda: 1,
        "from_rank_0": lambda _: str(first / ".seen-1"),
        "gather_objects": lambda value: [True, value],
    }.items():
        monkeypatch.setattr(f"pml_ext_train.training.features.{name}", double)
    with pytest.raises(ConfigError, match=r"process 1 cannot see .*\. Set XDG_CACHE_HOME to a folder that all"):
        second._share_store()


@pytest.mark.usefixtures("without_report")
def test_weights_come_from_a_file(tmp_path):
    state, _ = finished(tmp_path / "first")
    file = tmp_path / "trunk.pth"
    torch.save(state["trunk"] | {"fc.weight": torch.zeros(1)}, file)
    again, _ = finished(tmp_path / "second", "model.freeze=trunk", f"model.trunk.weights={file}", seed=3)
    torch.testing.assert_close(dict(again["trunk"]), dict(state["trunk"]), rtol=0, atol=0)


def frozen_run(place, photos):
    write_photos(photos, classes=4, each=6)
    data = f"data={{name='folder:{photos}', image_size=16, channels=3, cache='none', images={{crop=16}}}}"
    overrides = [data, "model.freeze=trunk", "sampler.m=2", "sampler.batch_size=4", "schedule.epochs=1"]
    overrides += ["schedule.milestones=[1]", "sampler.iterations=2"]
    train("cbml/digits", overrides=typed(["model.trunk.width=8", "model.trunk.weights=random", *overrides]), out=place)


@pytest.mark.usefixtures("without_report")
def test_an_index_takes_the_features_that_training_computed(tmp_path, monkeypatch):
    """Files that the run has read do not go through the trunk again; new ones do, once for all runs of the trunk."""
    photos = tmp_path / "photos"
    passed = []
    frozen_run(tmp_path / "run", photos)
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(photos / "class-00" / "new.png")
    expected = load_run(tmp_path / "run", store=tmp_path / "apart")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    expected = expected.embed_folder(photos)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for images in ([photos / "class-01" / "1.png"], photos):
        run = load_run(tmp_path / "run", store=tmp_path / f"store {len(str(images))}")
        run.images.computed.network.trunk.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
        passed.clear()
        found = run.embed(images)
        own = [number for number, path in enumerate(expected.paths) if images == photos or path == "class-01/1.png"]
        torch.testing.assert_close(found, expected.embeddings[own], atol=1e-5, rtol=0)
        assert sum(passed) == (images == photos)
    (database,) = (tmp_path / "cache").glob("pml_ext/features/*/keys.sqlite")
    database.write_bytes(b"damaged")
    with pytest.warns(StoreWarning, match="features could not be cached: .*damaged"):
        found = load_run(tmp_path / "run", store=tmp_path / "last").embed(photos)
    torch.testing.assert_close(found, expected.embeddings, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("without_report")
def test_replaced_files_are_never_stale(tmp_path, monkeypatch):
    frozen_run(tmp_path / "run", tmp_path / "photos")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    listed = folder_pass.list_folder

    def overtaken(folder, rules):
        listing = listed(folder, rules)
        write_photos(tmp_path / "others", classes=4, each=6, seed=1)
        for name in listing.names:
            (tmp_path / "others" / name).replace(folder / name)
        return listing

    def old_pixels(path, *rest, **more):
        return read(Path(str(path).replace("photos", "before")), *rest, **more)

    shutil.copytree(tmp_path / "photos", tmp_path / "before")
    read = reading.read_image
    monkeypatch.setattr(folder_pass, "list_folder", overtaken)
    monkeypatch.setattr(reading, "read_image", old_pixels)  # read before the replacement, kept after it
    load_run(tmp_path / "run", store=tmp_path / "one", workers=0).index(tmp_path / "photos")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    again = load_run(tmp_path / "run", store=tmp_path / "one").index(tmp_path / "photos").embedded
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third cache"))
    scratch = load_run(tmp_path / "run", store=tmp_path / "two").index(tmp_path / "photos").embedded
    rows = [again.paths.index(path) for path in scratch.paths]
    torch.testing.assert_close(again.embeddings[rows], scratch.embeddings, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("home", ["none", "unwritable"])
def test_a_frozen_trunk_needs_no_home(tmp_path, monkeypatch, home):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "a file"))
    if home == "none":
        monkeypatch.setattr("pml_ext_train.data.published.Path.home", Mock(side_effect=RuntimeError("no home")))
    with pytest.warns(UserWarning, match="features are not cached for other runs: .*HOME"):
        frozen_run(tmp_path / "run", tmp_path / "photos")
    run = load_run(tmp_path / "run", store=tmp_path / "store")
    assert len(run.index(tmp_path / "photos")) == 24


# Kept features of a run


@pytest.mark.usefixtures("without_report")
def test_kept_views_are_reproducible_and_differ(tmp_path):
    first, _ = finished(tmp_path / "a", "model.freeze=trunk", "model.views=4")
    again, _ = finished(tmp_path / "b", "model.freeze=trunk", "model.views=4")
    plain, _ = finished(tmp_path / "c", "model.freeze=trunk")
    assert torch.equal(first["embedder"]["weight"], again["embedder"]["weight"])
    assert not torch.equal(first["embedder"]["weight"], plain["embedder"]["weight"])


def test_frozen_views_are_computed_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    frozen = ["model.freeze=trunk", "model.trunk.weights=random", "model.views=2"]
    run = built(tmp_path / "run", *frozen, "data.augment.transforms=[{name='RandomRotation', degrees=15}]")
    run.inputs.compute_views()
    monkeypatch.setattr("pml_ext_train.training.features.FeatureCache.of", None)
    assert len(run.inputs.reader_of(run.stages[0]).views) == 2


@pytest.mark.parametrize("kept", [2, 3, 5])
def test_of_kept_views_a_batch_has_different_ones(kept):
    features = [Features.of_vectors(torch.full((4, 1), float(number))) for number in range(kept)]
    reader = FeatureReader(features, np.arange(4), torch.device("cpu"))
    rows = torch.cat([batch.images for batch in reader.read(epoch_batches([[0, 1, 2, 3]] * 50, 0, 1, views=2))])
    assert (rows[::2] != rows[1::2]).all()
    assert set(rows.flatten().tolist()) == set(range(kept))

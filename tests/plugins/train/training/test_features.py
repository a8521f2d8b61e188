"""What runs cache of a trunk: features of a frozen one, activations before its last blocks, and the store on disk."""

import contextlib
import multiprocessing
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from unittest.mock import Mock, patch

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
from pml_ext_train.recipe import load_recipe, reported_phases
from pml_ext_train.training import (
    FeatureCache,
    FeatureReader,
    Features,
    Run,
    epoch_batches,
    evaluate_split,
    load,
    open_run,
    train_run,
)
from pml_ext_train.training.batch_norm import synchronize_batch_norm
from pml_ext_train.training.feature_store import FeatureStore, trunk_digest

from ....overrides import typed
from ...search.conftest import flip, full
from .made_up_photos import write_photos
from .whole_runs import SHORT, assert_close_networks, assert_the_same_when_resumed, built, finished


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("name", "size"), [("none", 32), ("pca", 8)])
def test_without_anything_to_train_the_trunk_is_tested(tmp_path, name, size):
    state, metrics = finished(
        tmp_path / "run", "model.freeze=trunk", f"model.embedder={name}", f"model.embedding_size={size}"
    )
    assert metrics["after"] == pytest.approx(metrics["pca" if name == "pca" else "frozen"])
    assert state["epoch"] == 0


@pytest.mark.nightly
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
    assert metrics["features"]["recall_at_1"] == pytest.approx(
        float((labels[nearest] == labels).double().mean()), abs=0.004
    )
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
        assert torch.equal(cache(trunk).of(images)[torch.arange(10)], wanted)
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
    assert cache(trunk).of(LabeledImages(pixels, [0, 1, 1, 2], ["a", "b", "c"]))[:][:, 0].tolist() == [0, 1, 1, 2]
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
    with contextlib.closing(sqlite3.connect(shared.store.folder / "keys.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match="not cached for other runs: .*locked.*set XDG_CACHE_HOME"):
            features = shared.of(images)
    assert features[:][:, 0].tolist() == list(range(10))
    assert trunk.seen == 20
    cache(trunk).of(images)
    assert trunk.seen == 20  # the shared store has its features still


def test_processes_that_miss_the_store_are_refused(tmp_path, monkeypatch):
    """It has a cache of its own, as on another machine."""
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
    settings = [
        f"data={{name='folder:{photos}', image_size=16, channels=3, cache='none', images={{crop=16}}}}",
        "model.trunk.width=8",
        "model.trunk.weights=random",
        "model.freeze=trunk",
        "sampler.m=2",
        "sampler.batch_size=4",
        "schedule.epochs=1",
        "schedule.milestones=[1]",
        "sampler.iterations=2",
    ]
    train("cbml/digits", overrides=typed(settings), out=place)


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
    run = load_run(tmp_path / "run", store=tmp_path / "one", workers=0)
    with patch.object(folder_pass, "list_folder", overtaken), patch.object(reading, "read_image", old_pixels):
        run.index(tmp_path / "photos")  # the pixels were read before the replacement, and are kept after it
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
    assert len(load_run(tmp_path / "run", store=tmp_path / "store").index(tmp_path / "photos")) == 24


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
    run = built(
        tmp_path / "run",
        "model.freeze=trunk",
        "model.trunk.weights=random",
        "model.views=2",
        "data.augment.transforms=[{name='RandomRotation', degrees=15}]",
    )
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


# Activations before the last blocks


BLOCK = "4"  # of the convnet, the first layer of its second block
PLAIN = "data.augment.shift=0"


def cut(precision="float32", **more):
    settings = {"until": BLOCK, "precision": precision, **more}
    return "model.freeze={" + ", ".join(f"{key}={value!r}" for key, value in settings.items()) + "}"


LIVE = 'model.freeze=["0", "1", "2", "3"]'


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("settings", "live", "cached"),
    [
        pytest.param(
            ["model.embedder=mlp", "model.hidden_sizes=[16]", "model.norm=batch"],
            'model.freeze=["*"]',
            "model.freeze=trunk",
            id="trunk",
        ),
        pytest.param(["model.freeze_batch_norm=true"], LIVE, cut(), marks=pytest.mark.nightly, id="cut, frozen norms"),
        pytest.param(["model.freeze_batch_norm=false"], LIVE, cut(), marks=pytest.mark.nightly, id="cut"),
    ],
)
def test_cached_runs_equal_live_frozen_ones(tmp_path, settings, live, cached):
    """100 iterations; with dropout and a batch norm in the head, whose random numbers and statistics are alike."""
    looped, metrics = finished(tmp_path / "live", PLAIN, "model.dropout=0.2", *settings, live)
    kept, same = finished(tmp_path / "cached run", PLAIN, "model.dropout=0.2", *settings, cached)
    assert_close_networks(looped, kept, 1e-5)
    for phase in ("raw", "before", "after"):
        assert same[phase] == pytest.approx(metrics[phase], abs=1e-6), phase
    assert ("trunk" in load(tmp_path / "cached run" / "checkpoints" / "last.pt")["parts"]) is (
        cached != "model.freeze=trunk"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_float16_is_within_its_rounding(tmp_path):
    few = [PLAIN, "schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=3"]
    exact, _ = finished(tmp_path / "exact", *few, cut())
    rounded, _ = finished(tmp_path / "rounded", *few, cut("float16"))
    for state in (exact, rounded):  # before batch norm, a bias has the gradient of rounding alone
        del state["trunk"][f"{BLOCK}.bias"]
    assert_close_networks(exact, rounded, 5e-3)
    assert any(not torch.equal(value, rounded["trunk"][name]) for name, value in exact["trunk"].items())


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_resumed_run_has_equal_bits(tmp_path):
    settings = [
        cut("float16"),
        "model.views=2",
        "schedule.name=constant",
        "schedule.milestones=[]",
        "evaluation.validation=0.3",
        "evaluation.select=map_at_r",
        "sampler.batch_size=40",
    ]
    assert_the_same_when_resumed(tmp_path, *settings)


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_stage_of_the_head_alone_keeps_features(tmp_path, monkeypatch):
    passes = []
    real = FeatureCache.of
    monkeypatch.setattr(FeatureCache, "of", lambda *given: passes.append(given) or real(*given))
    stage = '[{epochs=2, loss={name="cbml"}, freeze={until="head", precision="float32"}}]'
    run = Run(
        load_recipe(
            "cbml/digits",
            typed([*SHORT, PLAIN, f"stages={stage}", "schedule.milestones=[4]", "model.freeze_batch_norm=true"]),
        ),
        "cbml/digits",
        tmp_path,
    )
    first, last = run.stages
    assert isinstance(run.inputs.trained_trunk(first), torch.nn.Identity)
    assert run.inputs.trained_trunk(last) is run.trunk
    weights = [run.trunk[0].weight.detach().clone()]  # and after each epoch
    monkeypatch.setattr(
        "pml_ext_train.training.loop.validate", lambda *_: weights.append(run.trunk[0].weight.detach().clone())
    )
    train_run(run, finish=lambda *_: {})
    # The features of all training images, once, and of the tested images for the test before the training.
    assert [len(images) for _, images, *_ in passes] == [len(run.images("train")), len(run.images("test"))]
    assert torch.equal(weights[2], weights[0])
    assert not torch.equal(weights[3], weights[0])


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            [cut(gigabytes=1e-6)],
            r"need .* KB .* above 1e-06 GB. Cut at a later block, use fewer model.views, .* model.freeze.gigabytes=1$",
        ),
        (['model.freeze={until="7x"}'], "no block of the trunk '7x'"),
        (['model.freeze={until="4", gigabyte=1}'], "no key 'gigabyte'"),
        ([cut(), "model.trunk.weights=random", "model.init=other"], "features are cached for pretrained trunks only"),
        (["model.views=2"], "goes with freeze = 'trunk' or a cut"),
        (
            ['stages=[{epochs=1, loss={name="cbml"}}, {epochs=1, loss={name="cbml"}, freeze={until="4"}}]'],
            "stages with a cut come first",
        ),
        (['model.freeze="trunk"', 'stages=[{epochs=1, loss={name="cbml"}, freeze={until="4"}}]'], "goes without"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", overrides=typed([*SHORT, *settings]), out=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_images_pass_through_the_stem_once(tmp_path, monkeypatch):
    """Whitening, and the tests before and after the training, share one pass over all images."""
    passed = Counter()
    runs = []

    class Counted(Run):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self.trunk[0].register_forward_hook(lambda module, given, output: passed.update(stem=len(output)))
            runs.append(self)

    monkeypatch.setattr("pml_ext_train.launch.launch.Run", Counted)
    settings = [
        PLAIN,
        cut("float16"),
        "model.start=within-class",
        "model.refit=within-class",
        "model.embedding_size=16",
        "evaluation.training_images=5000",
        "model.freeze_batch_norm=true",
    ]
    _, metrics = finished(tmp_path / "run", *settings)
    sizes = {name: len(images) for name, images in runs[0].splits.items()}
    probe = 1  # of the shape of activations
    assert passed["stem"] == sizes["train"] + sizes["test"] + probe
    view = open_run(tmp_path / "run", 0, "cpu")
    assert view.cut is None  # it looks at images
    for split, phase, close in (("test", "after", 1e-9), ("train", "training", 2e-3)):
        assert evaluate_split(view, split)["map_at_r"] == pytest.approx(metrics[phase]["map_at_r"], abs=close)


# The store


SIZE = 5


def rows(first, count):
    """Rows that no other numbers have."""
    return np.arange(first * SIZE, (first + count) * SIZE, dtype=np.float32).reshape(count, SIZE)


def keys(first, count):
    return [f"{number}.png".encode() for number in range(first, first + count)]


def stats(count, size=10):
    return [(size, 1_700_000_000_000_000_000 + number) for number in range(count)]


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store", SIZE)


def test_unchanged_files_have_their_vectors(store):
    assert store.find(dict(zip(keys(0, 2), stats(2), strict=True))) == ({}, 0)
    assert store.vectors().shape == (0, SIZE)
    assert store.append(keys(0, 3), stats(3), rows(0, 3)) == dict(zip(keys(0, 3), range(3), strict=True))
    assert store.append(keys(3, 2), stats(2), rows(3, 2).astype(np.float64)) == {b"3.png": 3, b"4.png": 4}
    asked = dict(zip(keys(0, 6), [*stats(3), *stats(2), (1, 1)], strict=True))
    asked[b"1.png"] = (11, asked[b"1.png"][1])
    asked[b"2.png"] = (10, asked[b"2.png"][1] + 1)
    found, damaged = FeatureStore(store.folder, SIZE).find(asked)
    assert (found, damaged) == ({b"0.png": 0, b"3.png": 3, b"4.png": 4}, 0)
    assert np.array_equal(store.vectors(), rows(0, 5))


def test_what_a_killed_process_left_is_overwritten(store):
    store.append(keys(0, 2), stats(2), rows(0, 2))
    with (store.folder / "vectors.f32").open("ab") as file:
        file.write(b"half of a row")
    assert store.append(keys(2, 1), stats(1), rows(2, 1)) == {b"2.png": 2}
    assert np.array_equal(store.vectors(), rows(0, 3))


def test_failed_writes_leave_no_key(store):
    store.append(keys(0, 1), stats(1), rows(0, 1))
    text = r"vectors.f32: cannot be written \(No space left on device\)"
    with patch("pml_ext_train.training.feature_store.os.fsync", full), pytest.raises(OSError, match=text):
        store.append(keys(1, 1), stats(1), rows(1, 1))
    assert store.find({b"1.png": stats(1)[0]}) == ({}, 0)
    assert store.append(keys(1, 1), stats(1), rows(1, 1)) == {b"1.png": 1}


def append_some(folder, first):
    store = FeatureStore(folder, SIZE)
    for number in range(first, first + 20):
        store.append(keys(number, 1), stats(1), rows(number, 1))


@pytest.mark.nightly
def test_several_processes_append_at_once(store):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=append_some, args=(store.folder, first)) for first in (0, 100)]
    for worker in workers:
        worker.start()
    append_some(store.folder, 200)
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0
    found, damaged = store.find({key: stats(1)[0] for first in (0, 100, 200) for key in keys(first, 20)})
    assert (sorted(found.values()), damaged) == (list(range(60)), 0)
    for first in (0, 100, 200):
        assert np.array_equal(store.vectors()[[found[key] for key in keys(first, 20)]], rows(first, 20))


def batch_norms():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Flatten())


def timm_batch_norms():
    layers = pytest.importorskip("timm.layers", reason="the extra timm is not installed")
    return nn.Sequential(layers.BatchNormAct2d(4), nn.Flatten())


@pytest.mark.parametrize("build", [batch_norms, timm_batch_norms])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_joined_batch_norms_keep_the_digest(build, device):
    trunk = build()
    plain = trunk_digest(trunk, "steps")
    joined = synchronize_batch_norm(trunk, torch.device(device))
    assert "Sync" in str(joined) or "Joined" in str(joined)
    assert trunk_digest(joined, "steps") == plain
    assert trunk_digest(joined, "other steps") != plain

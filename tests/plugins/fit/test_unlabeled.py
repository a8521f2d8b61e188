"""``fit`` without labels: vectors, and photographs of a small network in place of the pretrained one."""

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_fit import folder_runs, unlabeled
from pml_ext_fit.commands import fit
from pml_ext_fit.unlabeled import has_no_labels
from pml_ext_train.files import read_json
from pml_ext_train.launch.launch import draw_report
from pml_ext_train.records.run_files import tables_of_run
from pml_ext_train.training.listener import Silence

from ...overrides import typed
from ..search.photographs import photograph
from ..train.training.made_up_photos import write_photos

SMALL = typed(
    [
        "model.trunk=convnet",
        "model.trunk.blocks=2",
        "model.trunk.weights=random",
        "model.embedding_size=1024",
        "data.images.resize=16",
        "data.images.crop=16",
    ]
)


@pytest.fixture
def flat(tmp_path):
    """A flat folder of six photographs."""
    place = tmp_path / "my photos"
    place.mkdir()
    for number in range(6):
        photograph(number, side=32).save(place / f"{number}.png")
    return place


def save_vectors(file, count):
    rows = np.random.default_rng(0).normal(size=(count, 8)) * np.arange(1, 9)
    np.savez(file, embeddings=rows.astype(np.float32))
    return rows


def test_which_data_has_no_labels(flat, tmp_path):
    assert has_no_labels(flat)
    assert not has_no_labels(tmp_path)  # a folder of a folder
    (tmp_path / "empty").mkdir()
    assert not has_no_labels(tmp_path / "empty")
    save_vectors(tmp_path / "rows.npz", 4)
    assert has_no_labels(tmp_path / "rows.npz")
    np.savez(tmp_path / "labeled.npz", embeddings=np.eye(4, dtype=np.float32), labels=[0, 0, 1, 1])
    assert not has_no_labels(tmp_path / "labeled.npz")
    assert not has_no_labels(tmp_path / "missing.npz")


def test_vectors_are_whitened_by_their_covariance(tmp_path, capsys, out):
    generator = np.random.default_rng(0)
    means = generator.normal(size=(60, 8))
    rows = means[np.arange(600) % 60] + 0.1 * generator.normal(size=(600, 8))
    rows[:, :2] += generator.normal(size=(600, 2))  # directions in which the items of a class differ
    np.savez(tmp_path / "rows.npz", embeddings=rows.astype(np.float32))
    fit(tmp_path / "rows.npz", out=out, device="cpu")
    assert "whitens the features by the covariance of all 600 vectors" in capsys.readouterr().err

    found = load_run(out, "cpu").vectors.embedded(tmp_path / "rows.npz").embeddings
    centered = rows - rows.mean(0)
    covariance = centered.T @ centered / len(rows)
    shrinkage = 0.94  # 1 - 0.06 (600 / 608) ** 0.5
    mean = np.trace(covariance) / 8
    values, axes = np.linalg.eigh((1 - shrinkage) * covariance + shrinkage * mean * np.eye(8))
    wanted = centered @ axes / np.sqrt(values)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.allclose(found.numpy() @ found.numpy().T, wanted @ wanted.T, atol=1e-4)


def test_vectors_without_visible_groups_stay_unwhitened(tmp_path, capsys, out):
    save_vectors(tmp_path / "rows.npz", 600)
    fit(tmp_path / "rows.npz", out=out, device="cpu")
    assert "uses unwhitened features: whitening would not keep their groups apart" in capsys.readouterr().err
    assert tables_of_run(out)["model"]["embedder"] == "none"


def test_few_vectors_stay_unchanged_without_claims(tmp_path, capsys, out):
    rows = save_vectors(tmp_path / "rows.npz", 40)
    fit(tmp_path / "rows.npz", out=out, device="cpu")
    shown = capsys.readouterr()
    assert "uses unwhitened features: whitening needs 500 vectors, found 40" in shown.err
    assert "40 vectors, without labels; nothing was tested" in shown.out
    metrics = read_json(out / "metrics.json")
    assert (metrics["after"], metrics["epochs"], metrics["images"]) == ({}, 0, {"train": {"images": 40}})
    assert "Nothing was tested, because the right answers are not known" in (out / "report.html").read_text()
    nearest = load_run(out, "cpu").query(["7"], k=1)[0]  # the collection is there
    normalized = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distances = np.linalg.norm(normalized - normalized[7], axis=1)
    assert nearest.paths == [str(np.argsort(distances)[1])]

    (out / "report.html").unlink()
    draw_report(out, "cpu")
    assert "40 vectors without labels" in (out / "report.html").read_text()


def test_a_flat_folder_is_fitted_and_remembered(flat, capsys, out):
    (flat / "broken.png").write_bytes(b"no image")
    fit(flat, out=out, overrides=SMALL, device="cpu")
    shown = capsys.readouterr().err
    assert shown.count("left out 1 image that cannot be read") == 1
    assert f"ready to search: pml-ext query '{flat}' IMAGE" in shown
    assert folder_runs.remembered(flat) == out
    assert load_run(out, "cpu").indexed_images().paths == [f"{number}.png" for number in range(6)]
    assert tables_of_run(out)["data"]["path"] == str(flat)
    assert any("broken.png" in text for text in read_json(out / "metrics.json")["warnings"])


def test_a_folder_of_classes_is_fitted_without_them(tmp_path, out):
    write_photos(tmp_path / "data", classes=2, each=3)
    fit(tmp_path / "data", out=out, no_labels=True, overrides=SMALL, device="cpu")
    assert read_json(out / "metrics.json")["after"] == {}
    assert len(load_run(out, "cpu").indexed_images().paths) == 6


def test_a_killed_run_refuses_other_data(flat, tmp_path, monkeypatch, out):

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(unlabeled, "index_run", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(flat, out=out, overrides=SMALL, device="cpu")
    weights = (out / "checkpoints" / "model.pt").read_bytes()
    photograph(9, side=32).save(flat / "9.png")
    fit(flat, out=out, overrides=SMALL, device="cpu", resume=True)
    assert (out / "checkpoints" / "model.pt").read_bytes() == weights
    assert len(load_run(out, "cpu").indexed_images().paths) == 7

    save_vectors(tmp_path / "rows.npz", 4)
    with pytest.raises(ConfigError, match="holds a run of .*my photos, not of .*rows.npz"):
        fit(tmp_path / "rows.npz", out=out, device="cpu", resume=True)
    with pytest.raises(ConfigError, match="exists; add --resume"):
        fit(flat, out=out, device="cpu")


def test_what_trains_by_labels_is_refused(flat, tmp_path):
    with pytest.raises(ConfigError, match="--fine-tune trains by labels"):
        fit(flat, out=tmp_path / "run", fine_tune=True, device="cpu")
    trained = [*SMALL, *typed(["model.freeze=none"])]
    with pytest.raises(ConfigError, match="unlabeled has no labels, so there is nothing to train"):
        fit(flat, out=tmp_path / "run", overrides=trained, device="cpu")


def test_a_folder_of_broken_files_leaves_nothing_behind(tmp_path):
    flat = tmp_path / "broken"
    flat.mkdir()
    for name in "ab":
        (flat / f"{name}.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match="none of 2 images can be read; the first: .*a.jpg"):
        fit(flat, out=tmp_path / "run", overrides=SMALL, device="cpu")
    assert not (tmp_path / "run").exists()


class Lines(Silence):
    """A listener that keeps the lines."""

    def __init__(self):
        self.lines = []
        self.step = self.warn = lambda text, *_: self.lines.append(text)

    embedding = Silence.step


@pytest.mark.usefixtures("weights")
def test_the_run_of_a_folder_is_made_once(flat, capsys):
    listener = Lines()
    run = unlabeled.run_of_folder(flat, "cpu", listener)
    assert listener.lines[0].startswith(f"{flat} has no run yet: makes one of it in {run}, without labels")
    assert run.parent == folder_runs.home_of(flat)
    assert torch.isfinite(load_run(run, "cpu").embed(flat)).all()
    listener = Lines()
    assert unlabeled.run_of_folder(flat, "cpu", listener) == run
    assert listener.lines == [f"uses the run of {flat}: {run}"]


def test_an_unwritable_cache_names_the_option(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, where nothing can be written")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UnwritableError, match=r"the cache cannot be written \(Not a directory\); type: pml-ext fit "):
        unlabeled.run_of_folder(tmp_path / "photos", "cpu", Silence())

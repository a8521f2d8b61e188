"""``fit`` without labels: vectors, photographs, and labels that come later; mostly of a small network."""

import csv
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_fit import folder_runs, one_pass, unlabeled, unlabeled_whitening
from pml_ext_fit.commands import fit
from pml_ext_fit.later_labels import labeled_table
from pml_ext_fit.unlabeled import has_no_labels
from pml_ext_fit.unlabeled_whitening import shrinkage_without_labels, whitening_helps
from pml_ext_train.data import read_rows
from pml_ext_train.files import read_json
from pml_ext_train.launch.launch import draw_report
from pml_ext_train.recipe import build_dataset, load_recipe, preprocessing_of
from pml_ext_train.records.run_files import tables_of_run
from pml_ext_train.training.features import FeatureCache

from ...overrides import typed
from ..search.photographs import photograph, write_photographs
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
    return write_photographs(tmp_path / "my photos", 6, side=32)


def save_vectors(file, count):
    rows = np.random.default_rng(0).normal(size=(count, 8)) * np.arange(1, 9)
    np.savez(file, embeddings=rows.astype(np.float32))
    return rows


def test_missing_and_empty_data_is_not_unlabeled(tmp_path):
    assert not has_no_labels(tmp_path)
    assert not has_no_labels(tmp_path / "missing.npz")


def test_vectors_are_whitened_by_their_covariance(tmp_path, capsys, out):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(60, 8))[np.arange(600) % 60] + 0.1 * generator.normal(size=(600, 8))
    rows[:, :2] += generator.normal(size=(600, 2))  # directions in which the items of a class differ
    np.savez(tmp_path / "rows.npz", embeddings=rows.astype(np.float32))
    fit(tmp_path / "rows.npz", out=out, device="cpu")
    assert "whitens the features by the covariance of all 600 vectors" in capsys.readouterr().err

    found = load_run(out, "cpu").vectors.embedded(tmp_path / "rows.npz").embeddings.numpy()
    centered = rows - rows.mean(0)
    covariance = centered.T @ centered / len(rows)
    shrinkage = 0.94  # 1 - 0.06 (600 / 608) ** 0.5
    mean = np.trace(covariance) / 8
    values, axes = np.linalg.eigh((1 - shrinkage) * covariance + shrinkage * mean * np.eye(8))
    wanted = centered @ axes / np.sqrt(values)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.allclose(found @ found.T, wanted @ wanted.T, atol=1e-4)


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
    similarities = rows @ rows[7] / np.linalg.norm(rows, axis=1)
    assert nearest.paths == [str(np.argsort(-similarities)[1])]

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
    with monkeypatch.context() as patched:
        patched.setattr(unlabeled, "index_run", Mock(side_effect=KeyboardInterrupt))
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fine_tune": True}, "--fine-tune trains by labels"),
        (
            {"overrides": [*SMALL, *typed(["model.freeze=none"])]},
            "unlabeled has no labels, so there is nothing to train",
        ),
    ],
)
def test_what_trains_by_labels_is_refused(flat, out, options, text):
    with pytest.raises(ConfigError, match=text):
        fit(flat, out=out, device="cpu", **options)


def test_a_folder_of_broken_files_leaves_nothing_behind(flat, out):
    for file in flat.iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match="none of 6 images can be read; the first: .*0.png"):
        fit(flat, out=out, overrides=SMALL, device="cpu")
    assert not out.exists()


@pytest.mark.usefixtures("weights")
def test_the_run_of_a_folder_is_made_once(flat, capsys):
    listener = Mock()
    run = unlabeled.run_of_folder(flat, "cpu", listener)
    line = listener.step.call_args_list[0].args[0]
    assert line.startswith(f"{flat} has no run yet: makes one of it in {run}, without labels")
    assert run.parent == folder_runs.home_of(flat)
    assert torch.isfinite(load_run(run, "cpu").embed(flat)).all()
    listener = Mock()
    assert unlabeled.run_of_folder(flat, "cpu", listener) == run
    assert [call.args[0] for call in listener.method_calls] == [f"uses the run of {flat}: {run}"]


def test_an_unwritable_cache_names_the_option(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, where nothing can be written")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UnwritableError, match=r"the cache cannot be written \(Not a directory\); type: pml-ext fit "):
        unlabeled.run_of_folder(tmp_path / "photos", "cpu", Mock())


def mixture(classes, size, spread):
    """Return 600 items of Gaussian classes, whose directions have standard deviations ``spread`` within classes."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, size, generator=generator)
    return means[torch.arange(600) % classes] + spread * torch.randn(600, size, generator=generator)


def test_shrinkage_by_items_and_features():
    assert shrinkage_without_labels(600, 600) == 0.958
    assert shrinkage_without_labels(10**9, 1) == 0.94


@pytest.mark.parametrize(
    ("features", "helps"),
    [
        (mixture(5, 256, 1.0), False),  # few classes, far apart
        (mixture(60, 32, torch.tensor([3.0] * 4 + [0.5] * 28)), True),  # many classes
        (torch.ones(600, 4), False),
        (mixture(1, 32, torch.linspace(0.1, 3, 32)), False),  # no classes
    ],
)
def test_many_classes_are_whitened_and_few_not(features, helps):
    assert whitening_helps(features, 0.94) is helps


def test_items_are_drawn_from_many(monkeypatch):
    monkeypatch.setattr(unlabeled_whitening, "ITEMS", 300)
    features = mixture(5, 256, 1.0)
    assert not whitening_helps(features, 0.94)
    drawn = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:300]
    features[[row for row in range(600) if row not in set(drawn.tolist())]] = torch.nan
    assert not whitening_helps(features, 0.94)
    assert whitening_helps(mixture(60, 32, 0.5), 0.94)


def keep(folder, progress=lambda now: None):
    recipe = load_recipe("fit/unlabeled", [*SMALL, *typed([f"data.path={folder}"])])
    splits = build_dataset(recipe.data, None)
    preprocessing, _ = preprocessing_of(recipe, splits)
    torch.manual_seed(0)  # of the trunk's weights
    return one_pass.keep_features(recipe, splits.train, preprocessing, "cpu", lambda line: None, progress)


def test_an_interrupted_pass_goes_on_without_broken_files(flat, monkeypatch):
    (flat / "cut.png").write_bytes((flat / "0.png").read_bytes()[:200])
    (flat / "empty.png").touch()
    monkeypatch.setattr(one_pass, "PART", 2)
    seen = []

    def interrupt(now):
        seen.append(now.done)
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(flat, interrupt)
    assert seen == [2, 4]
    computed = []
    of = FeatureCache.of
    monkeypatch.setattr(FeatureCache, "of", lambda self, part, view=0: computed.extend(part.paths) or of(self, part))
    found = keep(flat)
    assert [path.name for path in computed] == ["4.png", "5.png", *(f"{number}.png" for number in range(6))]
    assert [path.name for path in found.readable.paths] == [f"{number}.png" for number in range(6)]
    assert (len(found.features), found.features.shape) == (6, (1024,))
    assert sorted(path.rpartition("/")[2] for path in found.unreadable) == ["cut.png", "empty.png"]
    assert found.note.startswith("left out 2 images that cannot be read: ")
    assert "cut.png: not a readable image" in found.note


def test_a_folder_is_known_by_its_path_alone(tmp_path, out, monkeypatch):
    monkeypatch.setattr(folder_runs, "is_finished", lambda run: run.is_dir())
    photos = tmp_path / "my photos"
    for folder in (photos, out, tmp_path / "other" / "my photos"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(photos)
    assert folder_runs.remembered(photos) is None
    folder_runs.remember(photos, out)
    assert folder_runs.remembered(photos) == out
    assert folder_runs.remembered(tmp_path / "link") == out
    assert folder_runs.remembered(tmp_path / "other" / "my photos") is None
    assert list(photos.iterdir()) == []
    out.rmdir()
    assert folder_runs.remembered(photos) is None
    (folder_runs.home_of(photos) / "run.json").write_text("cut {")
    assert folder_runs.remembered(photos) is None


def write_rows(file, rows):
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)


@pytest.fixture
def labeled(tmp_path, weights):
    """A flat folder of 32 photographs of four classes, a broken file, and one without a class; and the table."""
    write_photos(tmp_path / "classes", classes=4, each=8)
    place = tmp_path / "my photos"
    place.mkdir()
    rows = [("path", "class")]
    for file in sorted((tmp_path / "classes").rglob("*.png")):
        name = f"{file.parent.name}, {file.name}"
        file.rename(place / name)
        rows.append((name, file.parent.name))
    (place / "broken.png").write_bytes(b"no image")
    rows.append(("broken.png", "class-00"))
    Image.new("RGB", (48, 48), "red").save(place / "unknown.png")
    write_rows(tmp_path / "classes.csv", rows)
    return place, tmp_path / "classes.csv"


@pytest.mark.nightly
def test_a_head_is_fitted_to_kept_features(labeled, tmp_path, monkeypatch, capsys):
    place, table = labeled
    fit(place, out=tmp_path / "before", device="cpu")
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr("pml_ext_train.training.features.embed_batches", None)  # no image is read
        fit(place, labels=table, out=tmp_path / "after", device="cpu")
    shown = capsys.readouterr()
    assert f"{table}: classes of 32 of 33 images" in shown.err
    assert "whole images at 224 pixels: that took" in shown.err
    assert read_json(tmp_path / "after" / "metrics.json")["after"]["recall_at_1"] > 0.6  # at random a third or less
    assert tables_of_run(tmp_path / "after")["data"]["images"]["squash"]
    assert folder_runs.remembered(place) == tmp_path / "after"
    indexed = load_run(tmp_path / "after", "cpu").indexed_images()
    assert len(indexed.paths) == 33
    assert "unknown.png" in indexed.paths


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_the_table_has_absolute_paths_of_classed_images(labeled):
    place, table = labeled
    with table.open("a", newline="") as file:
        file.write("unknown.png,\n")
    copied = labeled_table(place, table, None, [], "cpu", Mock()).file
    assert copied.parent == folder_runs.home_of(place)
    rows = rows_of(copied)
    assert len(rows) == 32
    assert list(rows[0].items()) == [("path", str(place / "class-00, 0.png")), ("label", "class-00")]


TABLES = {
    "file,class\na.png,a\n": r"found the columns file, class; wanted path, relative to .*my photos, and cl",
    "path,class\ngone.png,a\n": r"gone.png: no such file, though .*other.csv lists it \(1 of 1 are missing\)",
    "path,class\nbroken.png,a\n": "none of its 1 images can be read",
    "path,class\nunknown.png,\n": "found no class in its 1 rows; fill the column class",
}


def test_tables_of_something_else_are_refused(labeled, tmp_path):
    place, table = labeled
    other = tmp_path / "other.csv"
    with pytest.raises(DataError, match="other.csv: no such file; wanted a .csv or .parquet table"):
        labeled_table(place, other, None, [], "cpu", Mock())
    for written, text in TABLES.items():
        other.write_text(written)
        with pytest.raises(DataError, match=text):
            labeled_table(place, other, None, [], "cpu", Mock())
    with pytest.raises(ConfigError, match="the table belongs to a folder of images; .*classes.csv is not a folder"):
        labeled_table(table, table, None, [], "cpu", Mock())
    for option, text in (("no_labels", "--labels and --no-labels contradict"), ("fine_tune", "a head in closed form")):
        with pytest.raises(ConfigError, match=text):
            fit(place, labels=table, device="cpu", **{option: True})


def test_errors_are_about_the_table_that_was_given(labeled, tmp_path):
    place, table = labeled
    names = [row.rpartition(",")[0] for row in table.read_text().splitlines()[1:4]]
    other = tmp_path / "my own.csv"
    lines = ["path,class,split", "unknown.png,,", f"{names[0]},one,train", "", f'{names[1]},"a\nb",train']
    wrong_split = "\n".join([*lines, f"{names[2]},two,trian", ""])
    one_class = f"path,class\n{names[0]},one\n{names[1]},one\n"
    for written, text in (
        (wrong_split, r"my own.csv, line 7: found split 'trian'"),
        (one_class, r"my own.csv: found 1 classes in 2 rows; wanted two or more"),
    ):
        other.write_text(written)
        with pytest.raises(DataError, match=text) as raised:
            fit(place, labels=other, device="cpu")
        assert "labels-" not in str(raised.value)


@pytest.mark.nightly
def test_patterns_leave_out_rows_of_the_table(labeled, tmp_path, capsys):
    place, table = labeled
    fit(place, labels=table, out=tmp_path / "run", exclude=["class-03*"], device="cpu")
    named = [row["path"] for _, row in read_rows(next(folder_runs.home_of(place).glob("labels-*.csv")), "")[1]]
    assert len(named) == 24
    assert not [path for path in named if "class-03" in path]
    assert len(load_run(tmp_path / "run", "cpu").indexed_images().paths) == 25
    with pytest.raises(DataError, match="no image is left"):
        fit(place, labels=table, exclude=["*"], device="cpu")


@pytest.mark.nightly
def test_named_clusters_of_the_page_are_labels(labeled, tmp_path, capsys):
    pytest.importorskip("starlette", reason="the extra [browse] is not installed")
    from pml_ext_browse import open_collections
    from pml_ext_browse.page import Page

    place, _ = labeled
    (place / "broken.png").unlink()
    fit(place, out=tmp_path / "before", device="cpu")
    page = Page(open_collections([tmp_path / "before"], place, "cpu", lambda _: None), tmp_path / "uploads")
    table = tmp_path / "classes.csv"
    table.write_text(page.named({"clusters": "3", "cluster0": " a  man's, best ", "cluster1": "Zürich"}))
    rows = rows_of(table)
    assert {row["class"] for row in rows} == {"a man's, best", "Zürich"}
    assert 4 <= len(rows) < 33
    capsys.readouterr()
    fit(place, labels=table, out=tmp_path / "after", device="cpu")
    assert f"{table}: classes of {len(rows)} of 33 images" in capsys.readouterr().err
    assert {*load_run(tmp_path / "after", "cpu").class_names} == {"a man's, best", "Zürich"}
    assert len(load_run(tmp_path / "after", "cpu").gallery().embedded.paths) == 33


def test_filled_tables_of_cluster_are_labels(labeled, tmp_path, pml_ext_command):
    place, _ = labeled
    table = tmp_path / "selected.csv"
    fit(place, out=tmp_path / "run", device="cpu")
    assert pml_ext_command("select", tmp_path / "run", "-n", 12, "--csv", table).returncode == 0
    assert pml_ext_command("cluster", tmp_path / "run", place, "-o", tmp_path / "clusters").returncode == 0
    for written in (table, tmp_path / "clusters" / "clusters.csv"):
        rows = rows_of(written)
        for number, row in enumerate(rows):
            row["class"] = "even" if number % 2 == 0 else "odd"
        write_rows(written, [[*rows[0]], *(row.values() for row in rows)])
        copies = rows_of(labeled_table(place, written, None, [], "cpu", Mock()).file)
        assert [sorted(row) for row in copies] == [["label", "path"]] * len(rows)

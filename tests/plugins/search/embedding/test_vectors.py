"""A run of vectors from the file to the index: trained, tested, indexed, queried by id, exported."""

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.embedding.vectors import VectorEmbedder
from pml_ext_train.launch.launch import train

from ....overrides import typed
from ..conftest import trained

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
BATCHES = ["sampler.batch_size=40", "sampler.iterations=10"]
QUICK = ["schedule.epochs=3", *BATCHES, "data.split=image", "model.embedding_size=16"]


def write(place, rows=slice(0, 400), **changes):
    digits = load_digits()
    ids = np.array([f"digits/{row}" for row in range(len(digits.target))])
    columns = {"embeddings": digits.data[rows], "labels": NAMES[digits.target][rows], "ids": ids[rows]} | changes
    np.savez(place, **columns)
    return place


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("vectors") / "digits.npz")


@pytest.fixture(scope="module")
def run(tmp_path_factory, file):
    place = tmp_path_factory.mktemp("run") / "run"
    train("fit/vectors", out=place, overrides=typed([f"data.name=vectors:{file}", *QUICK]), device="cpu")
    return place


@pytest.fixture(scope="module")
def indexed(run, file):
    loaded = load_run(run, "cpu")
    return loaded, loaded.index(file)


def test_the_report_of_vectors_has_no_pictures(run):
    page = (run / "report.html").read_text("utf-8")
    assert "better than raw vectors (" in page or "by raw vectors it is for" in page
    assert "pml-ext query" in page
    assert 'class="keeps-colors"' not in page
    assert "raw pixels" not in page
    assert not [path.name for path in (run / "figures").iterdir() if "nearest" in path.name]
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["input"] == "vectors"
    assert metrics["after"]["map_at_r"] > metrics["before"]["map_at_r"]
    assert {"raw", "pca", "before", "after", "training"} <= metrics.keys()


def test_embeddings_are_normalized_outputs_of_the_head(indexed, file):
    loaded, gallery = indexed
    rows = torch.tensor(np.load(file)["embeddings"], dtype=torch.float32)
    with torch.no_grad():
        wanted = torch.nn.functional.normalize(loaded.embedder(rows))
    assert torch.allclose(loaded.embed(file), wanted, atol=1e-6)
    assert torch.allclose(gallery.embedded.embeddings, wanted, atol=1e-6)
    assert torch.allclose(loaded.embed(rows[7]), wanted[7:8], atol=1e-6)


def test_embeddings_that_are_not_finite_are_named(indexed, tmp_path, monkeypatch):
    loaded, _ = indexed
    rows = load_digits().data[:40].astype(np.float32)
    rows[7] = 1e6
    file = write(tmp_path / "large.npz", slice(0, 40), embeddings=rows)
    network = loaded.vectors.network
    forward = network.forward

    def overflow(rows):
        return forward(rows).masked_fill(rows.amax(1, keepdim=True) > 1e5, torch.inf)

    monkeypatch.setattr(network, "forward", overflow)
    monkeypatch.setattr("pml_ext_search.query.match._BATCH", 4)
    for call in (
        lambda: loaded.embed(file),
        lambda: loaded.query(str(file)),
        lambda: loaded.vectors.embedded(file),
        lambda: loaded.match(str(file), tmp_path / "found.jsonl"),
    ):
        with pytest.raises(DataError, match="NaN or infinity for 1 of .* vectors, digits/7 first"):
            call()


def test_a_query_by_id_equals_a_loop(indexed, file):
    loaded, gallery = indexed
    points = gallery.embedded.embeddings
    (answer,) = loaded.query(["digits/17"], k=5)
    distances = (points - points[17]).norm(dim=1)
    distances[17] = torch.inf
    nearest = distances.argsort()[:5]
    labels = np.load(file)["labels"]
    assert answer.query == "digits/17"
    assert answer.query_class == labels[17]
    assert answer.paths == [f"digits/{row}" for row in nearest.tolist()]
    assert answer.classes == labels[nearest].tolist()
    assert np.allclose(answer.distances, distances[nearest], atol=1e-6)


def test_the_indexed_file_is_no_answer_to_itself(indexed, file, tmp_path):
    loaded, _ = indexed
    by_file = loaded.query(file, k=2)
    assert [answer.query for answer in by_file[:2]] == ["digits/0", "digits/1"]
    assert all(answer.query not in answer.paths for answer in by_file)
    others = write(tmp_path / "others.npz", slice(400, 403), ids=np.array(["digits/1", "b", "c"]))
    assert [answer.query for answer in loaded.query(others, k=1)] == ["digits/1", "b", "c"]
    copied = loaded.query(write(tmp_path / "same.npz", slice(0, 2)), k=1)  # another file: its vectors are others
    assert [answer.paths for answer in copied] == [["digits/0"], ["digits/1"]]
    assert loaded.query(np.load(file)["embeddings"][:1], k=1)[0].paths == ["digits/0"]


def test_filters_ranks_and_duplicates_work(indexed):
    loaded, _ = indexed
    assert loaded.query(["digits/0"], k=3, within="two")[0].classes == ["two"] * 3
    assert loaded.query(["digits/0"], k=3, radius=1e-9)[0].paths == []
    assert len(loaded.query(["digits/0"], k=3, rerank="average")[0].paths) == 3
    assert loaded.duplicates(1e-9).groups == []
    with pytest.warns(UserWarning, match="fewer than 401 answers .*: the index holds 400 vectors"):
        loaded.query(["digits/0"], k=401)


def test_an_update_embeds_what_changed(run, file, tmp_path, monkeypatch):
    shutil.copytree(run, copied := tmp_path / "run", ignore=shutil.ignore_patterns("collection"))
    shutil.copy(file, mine := tmp_path / "mine.npz")
    loaded = load_run(copied, "cpu")
    before = loaded.index(mine).embedded
    columns = dict(np.load(mine))
    columns["embeddings"][3] += 1
    columns["labels"][4] = "other"  # a class that moves all others in the alphabet
    for name in columns:
        columns[name] = np.concatenate([columns[name][:-2], columns[name][:1]])
    columns["ids"][-1] = "new"
    np.savez(mine, **columns)
    assert loaded.gallery().check() == (["digits/398", "digits/399"], ["digits/3", "digits/4"])
    embedded = []
    embed = VectorEmbedder.embed
    monkeypatch.setattr(
        VectorEmbedder, "embed", lambda self, rows, ids=None: embedded.append(len(rows)) or embed(self, rows)
    )
    gallery = loaded.index()
    assert embedded == [2]  # the changed one and the new one
    assert gallery.changes == (1, 2, 2, 396)
    assert gallery.check() == ([], [])
    after = gallery.embedded
    ids = dict(zip(after.paths, after.ids.tolist(), strict=True))
    assert [ids[name] for name in before.paths[:398]] == before.ids[:398].tolist()
    assert dict(zip(after.paths, after.classes, strict=True))["digits/4"] == "other"
    assert torch.equal(after.embeddings[after.paths.index("digits/5")], before.embeddings[5])


def test_vectors_without_labels_are_searched(run, tmp_path):
    np.savez(tmp_path / "plain.npz", embeddings=load_digits().data[:20])
    loaded = load_run(run, "cpu", store=tmp_path / "store")
    loaded.index(tmp_path / "plain.npz")
    (answer,) = loaded.query(["3"], k=2)
    assert (answer.classes, answer.query_class) == (["", ""], None)


def test_ids_may_be_any_text(run, tmp_path):
    ids = ["../x", "/etc", "a//b", "..", "http://x.y/z?a=1", "ü", "-1", " ", "x.tar/y", "a/b"]
    file = write(tmp_path / "odd.npz", slice(0, 10), ids=np.array(ids))
    loaded = load_run(run, "cpu", store=tmp_path / "store")
    assert loaded.index(file).embedded.paths == ids
    assert [answer.query for answer in loaded.query(ids, k=1)] == ids


def test_the_vectors_of_validation_choose_the_epoch(file, tmp_path):
    np.savez(tmp_path / "parts.npz", **np.load(file), split=np.resize(["train", "train", "validation", "test"], 400))
    settings = [f"data.name=vectors:{tmp_path / 'parts.npz'}", "schedule.epochs=2", *BATCHES]
    choose = ["evaluation.select=map_at_r", "evaluation.select_on=split"]
    (chosen,) = trained("fit/vectors", tmp_path / "chosen", *settings, *choose)
    assert chosen["images"]["validation"]["images"] == 100
    (last,) = trained("fit/vectors", tmp_path / "last", *settings)
    assert "validation" not in last["images"]
    assert any("100 validation images of vectors:" in text and "select_on=split" in text for text in last["warnings"])
    with pytest.raises(ConfigError, match="evaluation.select_on: found 'split', but vectors:.* has no validation"):
        trained("fit/vectors", tmp_path / "none", f"data.name=vectors:{file}", "data.split=image", *choose)


def test_a_run_resumes_with_the_same_vectors_alone(file, tmp_path, without_report):
    columns = dict(np.load(file))
    mine = shutil.copy(file, tmp_path / "mine.npz")
    settings = [f"data.name=vectors:{mine}", *QUICK, "schedule.name=constant"]

    def resume(epochs):
        overrides = typed([*settings, f"schedule.epochs={epochs}"])
        train("fit/vectors", out=tmp_path / "run", overrides=overrides, resume=epochs > 1, device="cpu")

    resume(1)
    resume(2)
    columns["embeddings"][0] += 1
    np.savez(mine, **columns)
    with pytest.raises(DataError, match="the vectors have changed since the run began: .* has other vectors or labels"):
        resume(3)


def test_the_head_is_exported_with_card(indexed, tmp_path, file):
    from safetensors.torch import load_file

    loaded, _ = indexed
    loaded.export(tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert all(name.startswith("embedder.") for name in tensors)
    about = json.loads((tmp_path / "out" / "preprocess.json").read_text())
    assert (about["vector_size"], about["embedding_size"]) == (64, 16)
    rows = torch.tensor(np.load(file)["embeddings"], dtype=torch.float32)
    outputs = rows @ tensors["embedder.weight"].T + tensors["embedder.bias"]
    assert torch.allclose(torch.nn.functional.normalize(outputs), loaded.embed(file), atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Maps a vector of 64 numbers to an embedding of 16 numbers" in card
    assert "photo" not in card


def test_the_graph_of_the_head_takes_vectors(indexed, file, tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    loaded, _ = indexed
    loaded.export(tmp_path / "out", onnx=True)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    rows = np.load(file)["embeddings"][:7].astype(np.float32)
    (embeddings,) = session.run(None, {"vectors": rows})
    assert np.allclose(embeddings, loaded.embed(rows).numpy(), atol=1e-4)
    assert '{"vectors": vectors.numpy()}' in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["lancedb", "qdrant"])
def test_a_store_has_ids_and_classes(indexed, file, tmp_path, kind):
    pytest.importorskip({"lancedb": "lancedb", "qdrant": "qdrant_client"}[kind], reason=f"needs the extra {kind}")
    loaded, _ = indexed
    address = f"{kind}:{tmp_path / 'store'}"
    changes, recall = loaded.copy_to_store(address)
    assert (changes.new, recall) == (400, 1.0)
    (of_store,) = loaded.query(["digits/5"], k=4, store=address)
    (of_index,) = loaded.query(["digits/5"], k=4)
    assert (of_store.paths, of_store.classes) == (of_index.paths, of_index.classes)
    assert loaded.query(["digits/5"], k=2, store=address, within="two")[0].classes == ["two", "two"]
    elsewhere = load_run(loaded.folder, "cpu", store=tmp_path / "empty")  # without a local index
    assert elsewhere.query(np.load(file)["embeddings"][5:6], k=1, store=address)[0].paths == ["digits/5"]
    assert len(elsewhere.query(file, k=1, store=address)) == 400


def test_commands_from_a_file_to_an_answer(pml_ext_command, text_of, file, tmp_path):
    out = tmp_path / "run"
    settings = ["--set", "schedule.epochs=1", "--quick", "--device", "cpu"]
    trained = pml_ext_command("fit", file, "--out", out, *settings)
    assert "digits.npz: 400 vectors of 64 numbers, 10 classes of" in trained.stderr
    assert "trained head" in trained.stdout
    assert "400 vectors indexed" in text_of("index", out, file)
    shown = text_of("query", out, "digits/3", "-k", "2")
    assert "class" in shown
    assert shown.count("digits/3 ") == 2
    assert "800 answers for 400 vectors" in text_of("query", out, file, "-o", tmp_path / "all.jsonl", "-k", "2")
    first = json.loads((tmp_path / "all.jsonl").read_text().splitlines()[0])
    assert first["query"] == "digits/0"
    assert "digits/0" not in first["paths"]
    assert "400 embeddings of size 64" in text_of("embed", out, file, "-o", tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["ids"][1] == "digits/1"
    assert "400 vectors checked" in text_of("index", out, "--check")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("query RUN digits/3 --picture a.png", "which have no pictures; leave it out"),
        ("cluster RUN FILE --clusters 2", "was trained on vectors, which have no pixels; name a run of images"),
        ("embed RUN FILE -o out.npz --store X", "--store goes with images"),
        ("embed RUN FILE -o parts --part 1/1", "which have no pixels"),
        ("embed RUN FOLDER -o out.npz", "not a regular file; wanted vectors:FILE"),
        ("index RUN FILE --workers 2", "--workers is for reading images"),
        ("index RUN FOLDER", "not a regular file; wanted vectors:FILE"),
        ("fit nothing.npz", "nothing.npz: no such file; wanted vectors:FILE"),
        ("index RUN SHORT", "short.npz: found vectors of 3 numbers; "),
        ("query RUN SHORT FILE", "and more: wanted ids, or one file of vectors; name one file"),
        ("query RUN 0", "'0': no such id among the 400 of the index"),
        ("query RUN digits/3 --store empty", "no index; type: pml-ext index"),
    ],
)
def test_what_does_not_serve_is_one_line(pml_ext_command, indexed, file, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    if "--part" in line:
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    loaded, _ = indexed
    short = write(tmp_path / "short.npz", embeddings=np.zeros((400, 3)))
    places = {"RUN": loaded.folder, "FILE": file, "FOLDER": tmp_path, "SHORT": short}
    refused = pml_ext_command(*[places.get(word, word) for word in line.split()])
    assert refused.returncode != 0
    assert message in refused.stderr.splitlines()[-1]

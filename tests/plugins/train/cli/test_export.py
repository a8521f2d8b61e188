"""The command export."""

import json
import sys

import pytest

from pml_ext_train.results import export


def test_export_prints_the_graphs_largest_difference(pml_ext_command, runs, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")

    def write(path, network, images, input_name):
        assert images.shape == (100, 1, 8, 8)
        assert input_name == "images"
        path.write_text("a graph")
        return 2e-7

    monkeypatch.setattr(export, "write_onnx", write)
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "out", "--onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.onnx: embeddings differ from the network's by 2.0e-07 at most" in done.stdout
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "out", "--json")
    assert [file["file"] for file in json.loads(done.stdout)["files"]] == ["model.safetensors"]
    assert not (tmp_path / "out" / "model.onnx").exists()  # of the earlier export
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "other", "--onnx")
    assert done.returncode == 2
    assert 'pip install "pml-ext[onnx]"' in done.stderr
    assert not (tmp_path / "other").exists()


def test_an_export_names_its_files_and_folder(pml_ext_command, runs, tmp_path):
    done = pml_ext_command("export", runs[0], "--out", tmp_path / "out")
    assert done.stdout == f"model.safetensors, preprocess.json and README.md: {tmp_path / 'out'}\n"
    assert {"model.safetensors", "preprocess.json", "README.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    pml_ext_command("export", runs[0], "--out", tmp_path / "features", "--by", "features")
    about = json.loads((tmp_path / "features" / "preprocess.json").read_text())
    assert (about["by"], about["embedding_size"], about["hidden_sizes"]) == ("features", about["features"], None)
    assert f"to the {about['features']} features of the trunk" in (tmp_path / "features" / "README.md").read_text()
    done = pml_ext_command("export", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"{tmp_path}: no finished run (no recipe.toml in it); type: pml-ext train" in done.stderr

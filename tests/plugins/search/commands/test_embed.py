"""``pml-ext embed``: embeddings, paths and classes in a file."""

import json

import numpy as np

BROKEN = {"2/broken.png", "notes.txt"}


def test_the_command_writes_embeddings_paths_and_classes(command, runs, folder, tmp_path):
    file = tmp_path / "new" / "all.npz"
    done = command("embed", runs[1], folder, "-o", file)
    assert done.returncode == 0, done.stderr
    assert "200 embeddings of size 64" in done.stdout
    told = json.loads(command("embed", runs[1], folder, "-o", file, "--json").stdout)
    assert (told["file"], told["images"], told["size"], told["new"]) == (str(file), 200, 64, 0)
    assert set(told["skipped"]) == BROKEN
    assert "broken.png" in done.stderr
    assert "notes.txt" in done.stderr
    with np.load(tmp_path / "new" / "all.npz") as saved:
        assert saved["embeddings"].shape == (200, 64)
        assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
        assert saved["paths"][0].startswith("0/")
        assert saved["classes"][0] == "0"

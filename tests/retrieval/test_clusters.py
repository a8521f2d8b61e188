"""Clusters of a folder's images, their table and their sheets."""

import csv

import numpy as np
import pytest
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext.evaluation import purity
from pml_ext.retrieval import SkippedImage


def test_clusters(indexed, folder, tmp_path):
    run, _ = indexed
    with pytest.warns(SkippedImage):
        numbers = run.cluster(folder, 10, tmp_path / "out")
    assert len(numbers) == 200
    sizes = np.bincount(list(numbers.values()))
    assert len(sizes) == 10
    assert list(sizes) == sorted(sizes, reverse=True)
    with (tmp_path / "out" / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["path"]: int(row["cluster"]) for row in rows} == numbers
    assert len(list((tmp_path / "out").glob("cluster-*.png"))) == 10
    assert purity([int(path[0]) for path in numbers], list(numbers.values())) > 0.6
    with pytest.warns(SkippedImage), pytest.raises(ConfigError, match="--clusters 201: .* the 200 images"):
        run.cluster(folder, 201, tmp_path / "none")  # as many as there are files, but one is unreadable
    assert not (tmp_path / "none").exists()


def test_an_image_that_goes_while_sheets_are_drawn_leaves_a_placeholder(indexed, few, tmp_path, monkeypatch):
    run, _ = indexed
    embedded = run.embed_folder(few[0])

    def embed_folder(_):
        embedded.paths[3] = "gone.png"
        return embedded

    monkeypatch.setattr(run, "embed_folder", embed_folder)
    with pytest.warns(UserWarning, match=r"the contact sheets have a placeholder for an image .*gone.png: no such"):
        run.cluster(few[0], 2, tmp_path / "out")
    assert (tmp_path / "out" / "clusters.csv").read_text().count("\n") == 21


def test_the_command(command, runs, few, tmp_path):
    done = command("cluster", runs[1], few[0], "--clusters", "3", "-o", tmp_path / "clusters")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == ["0", "1", "2"]
    assert (tmp_path / "clusters" / "clusters.csv").exists()
    with Image.open(tmp_path / "clusters" / "cluster-002.png") as sheet:
        assert sheet.size[0] > 300

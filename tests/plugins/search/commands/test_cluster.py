"""``pml-ext cluster``: a table, and contact sheets."""

import csv
import json

import numpy as np
import pytest

from pml_ext.errors import ConfigError
from pml_ext.evaluation import purity
from pml_ext_search.embedding.embedding import SkippedImage


def test_clusters_their_table_and_their_sheets(command, indexed, folder, tmp_path):
    run = indexed[0]
    place = tmp_path / "clusters"
    done = command("cluster", run.folder, folder, "--clusters", "12", "-o", place, "--json")
    told = json.loads(done.stdout)
    assert [each["sheet"] for each in told["clusters"]] == [str(place / f"cluster-{n:03d}.png") for n in range(12)]
    assert len(list(place.glob("cluster-*.png"))) == 12
    assert told["table"] == str(place / "clusters.csv")
    with (place / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [int(row["cluster"]) for row in rows]
    assert len(numbers) == 200
    sizes = np.bincount(numbers).tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert purity([int(row["class"]) for row in rows], numbers) > 0.6
    with (
        pytest.warns(SkippedImage),
        pytest.raises(ConfigError, match="--clusters 201: wanted 201 images or more; .* has 200"),
    ):
        run.cluster(folder, 201, tmp_path / "none")  # as many as there are files, but one is unreadable
    assert not (tmp_path / "none").exists()
    for each in told["clusters"]:
        mine = [row for row in rows if int(row["cluster"]) == each["number"]]
        own = [row["class"] for row in mine]
        assert len(each["members"]) == len(mine)
        assert each["share"] == max(own.count(name) for name in own) / len(own) == own.count(each["name"]) / len(own)
        apart = [float(rows[member]["distance_to_center"]) for member in each["members"]]
        assert apart == sorted(apart)
        assert all(row["path"].startswith(f"{row['class']}/") for row in mine)


def test_other_numbers_of_clusters_are_suggested(command, indexed, folder, tmp_path):
    run = indexed[0]
    done = command("cluster", run.folder, folder, "--clusters", "auto", "-o", tmp_path / "clusters", "--json")
    told = json.loads(done.stdout)
    assert sum(len(each["members"]) for each in told["clusters"]) == 200
    assert told["other_numbers"][0] > len(told["clusters"])
    done = command("cluster", run.folder, folder, "--clusters", "auto", "-o", tmp_path / "clusters")
    text = " ".join(done.stdout.split())
    found = f"{len(told['clusters'])} clusters by first neighbors. For smaller or larger ones: "
    assert f"{found}--clusters {told['other_numbers'][0]}" in text


def test_the_rest_is_marked_in_table_and_sheets(command, indexed, folder, tmp_path):
    place = tmp_path / "clusters"
    options = ("cluster", indexed[0].folder, folder, "--clusters", 30, "--min-size", 7, "-o", place)
    told = json.loads(command(*options, "--json").stdout)
    *groups, rest = told["clusters"]
    assert [each["rest"] for each in told["clusters"]] == [False] * len(groups) + [True]
    assert min(len(each["members"]) for each in groups) >= 7
    with (place / "clusters.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] == "rest"]
    assert [(row["distance_to_center"], row["sheet"]) for row in rows] == [("", "cluster-rest.png")] * len(rows)
    assert len(rows) == len(rest["members"])
    assert rest["sheet"] == str(place / "cluster-rest.png")
    shown = " ".join(command(*options).stdout.split())
    assert f"{len(groups)} clusters by k-means; rest: {len(rows)} images in no group of 7 or more" in shown
    command("cluster", indexed[0].folder, folder, "--clusters", 3, "-o", place)
    assert not (place / "cluster-rest.png").exists()

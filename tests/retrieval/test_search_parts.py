"""Queries of a part: within a class or a radius; near-duplicates; several runs; what a query imports."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from pml_ext.errors import ConfigError

from .conftest import made_up

UNKNOWN = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize("factory", ["exact", "IVF8,Flat"])
def test_within_a_class_answers_are_the_nearest_of_it(indexed, make, folder, factory):
    exact, run = indexed[1], indexed[0] if factory == "exact" else make()
    if factory != "exact":
        made_up(run, exact.embedded.embeddings, factory, exact.embedded.paths, folder)
    query = folder / exact.embedded.paths[0]
    everything = indexed[0].query(query, 199)[0]
    for name in ("0", "7"):
        wanted = [
            (path, value)
            for path, value in zip(everything.paths, everything.distances, strict=True)
            if path.startswith(f"{name}/")
        ][:6]
        (answer,) = run.query(query, 6, within=name)
        assert answer.paths == [path for path, _ in wanted]
        assert answer.distances == pytest.approx([value for _, value in wanted], abs=1e-3)
    (members,) = [sum(path.startswith("7/") for path in exact.embedded.paths)]
    with pytest.warns(UserWarning, match=rf"fewer than 100 answers .*: the index holds {members} images of the class"):
        assert len(run.query(query, 100, within="7")[0].paths) == members
    with pytest.raises(ConfigError, match=r"--within 77: no class '77'; nearest: 7"):
        run.query(query, 3, within="77")


def test_a_radius_leaves_out_what_is_farther(command, indexed, folder):
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    nearest = run.query(query, 20)[0]
    radius = (nearest.distances[4] + nearest.distances[5]) / 2
    assert run.query(query, 20, radius=radius)[0].paths == nearest.paths[:5]
    assert run.query(query, 3, radius=radius)[0].paths == nearest.paths[:3]
    done = command("query", run.folder, query, "-k", 20, "--radius", radius, "--json")
    (told,) = json.loads(done.stdout)
    assert (told["paths"], told["classes"]) == (nearest.paths[:5], [path[0] for path in nearest.paths[:5]])
    assert told["ids"] == [int(gallery.embedded.ids[gallery.embedded.paths.index(path)]) for path in told["paths"]]
    done = command("query", run.folder, query, "--radius", 1e-6)
    assert (done.returncode, done.stderr) == (0, f"pml-ext: {query}: no image within 1e-06 (--radius)\n")
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="wanted a distance above 0"):
            run.query(query, 3, radius=wrong)


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_groups_of_near_duplicates_are_the_parts_that_pairs_connect(make, monkeypatch, factory):
    for name in ("_TILE", "_BLOCK"):
        monkeypatch.setattr(f"pml_ext.retrieval.query.{name}", 33)
    points = torch.nn.functional.normalize(torch.randn(150, 64, generator=torch.Generator().manual_seed(0)))
    points[100] = points[3]
    points[50] = torch.nn.functional.normalize(points[3] + 0.01 * points[4], dim=0)
    for step in range(3):  # a chain, of which the ends are farther than the radius
        points[120 + step] = torch.nn.functional.normalize(points[7] + 0.08 * (step + 1) * points[8], dim=0)
    paths = [f"{number:03d}.png" for number in range(150)]
    gallery = made_up(make(), points, factory, paths)
    groups = gallery.duplicates()
    assert groups == [["007.png", "120.png", "121.png", "122.png"], ["003.png", "050.png", "100.png"]]
    assert (points[7] - points[122]).norm() > 0.1
    assert gallery.duplicates(1e-4) == [["003.png", "100.png"]]


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_a_group_of_many_is_listed_once(make, factory):
    """What is returned grows with the images, not with their pairs."""
    paths = [f"{number:05d}.png" for number in range(3000)]
    points = torch.nn.functional.normalize(torch.ones(3000, 64))
    assert made_up(make(), points, factory, paths).duplicates() == [paths]


def test_the_command_lists_near_duplicates(command, make, few, tmp_path):
    run = make()
    images = shutil.copytree(few[0], tmp_path / "images")
    file = sorted(images.glob("*/*.png"))[0]
    shutil.copy(file, images / "copy $1_3.png")
    place = ("--store", run.index(images).place)
    done = command("query", run.folder, "--duplicates", "--radius", 1e-3, *place)
    assert done.returncode == 0, done.stderr
    assert "copy $1_3.png" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 group of 2 images within 0.001 of another (--radius)"
    told = json.loads(command("query", run.folder, "--duplicates", "--radius", 1e-3, "--json", *place).stdout)
    assert told == {"radius": 0.001, "groups": [[file.relative_to(images).as_posix(), "copy $1_3.png"]]}
    for options in (["--metric", "learned"], ["--shortlist", 3], ["--within", "0"]):
        done = command("query", run.folder, "--duplicates", *options)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "--duplicates compares all indexed images; leave out" in done.stderr
    done = command("query", run.folder)
    assert done.returncode == 2
    assert "wanted images to look for, or --duplicates; type: pml-ext query" in done.stderr


def test_a_query_imports_what_it_uses_alone(indexed, folder):
    """Each of these takes a fifth of a second or more."""
    run, gallery = indexed
    code = (
        "import sys; from pml_ext.cli.app import app\n"
        f"app(['query', {str(run.folder)!r}, {str(folder / gallery.embedded.paths[0])!r}, '--json'], "
        "standalone_mode=False)\n"
        "names = ['torchvision', 'pytorch_metric_learning', 'sklearn', 'scipy', 'matplotlib', 'pandas']\n"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert len(json.loads(done.stdout)[0]["paths"]) == 8


def test_an_empty_argument_is_not_the_folder_at_hand(command, runs, few, monkeypatch):
    monkeypatch.chdir(few[0])
    for arguments in (["index", runs[0], ""], ["embed", runs[0], "", "-o", "points.npz"], ["query", "", "a.png"]):
        done = command(*arguments)
        text = f"pml-ext: argument {arguments.index('') + 1} is empty, as that of a variable that is not set"
        assert (done.returncode, done.stderr) == (2, f"{text}; leave it out, or say what is meant\n")

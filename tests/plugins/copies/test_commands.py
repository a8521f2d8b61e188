"""``pml-ext duplicates``, and copies for other tools."""

import json
import re
import shutil

import numpy as np
import pytest

from pml_ext.errors import PluginError
from pml_ext_copies.service import find
from pml_ext_copies.set_aside import MOVES

from ..search.photographs import photograph


def test_a_folder_needs_no_run(command, photos):
    done = command("duplicates", photos)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["group", "copies", "distance", "pixels", "bytes", "path"]
    told = " ".join(done.stdout.split())
    assert re.search("3 groups with 21 of 24 images to spare.* 3 near, within .*chosen by 192 altered copies", told)
    assert re.search(r"the nearest other image is at \d\.\d+, typically at \d\.\d+$", told)


def test_files_are_written_and_copies_moved(command, photos, tmp_path):
    files = [tmp_path / name for name in ("copies.csv", "copies.png", "copies.html")]
    options = ("--csv", files[0], "--sheet", files[1], "--html", files[2])
    done = command("duplicates", photos, *options, "--move", tmp_path / "aside")
    assert "21 images moved to" in done.stdout, done.stderr
    assert all(file.stat().st_size > 100 for file in files)
    assert len(list(photos.glob("[0-9]*"))) == 3
    assert "0 images moved" in command("duplicates", photos, "--move", tmp_path / "aside").stdout
    assert f"21 images moved back to {photos}" in command("duplicates", photos, "--undo", tmp_path / "aside").stdout
    assert len(list(photos.glob("[0-9]*"))) == 24


def test_an_interrupted_move_goes_on(command, photos, tmp_path):
    aside = tmp_path / "aside"
    command("duplicates", photos, "--move", aside)
    moves = json.loads((aside / MOVES).read_text())
    moves["moves"][0]["finished"] = False
    (aside / MOVES).write_text(json.dumps(moves))
    *_, name, _ = moves["moves"][0]["images"][0]
    (aside / name).rename(photos / name)
    (photos / "#recycle").mkdir()
    again = command("duplicates", photos, "--move", aside)
    assert "continued an interrupted --move: 21 images moved" in again.stderr
    assert "#recycle: a recycle bin or another system folder" in again.stderr
    assert len(list(photos.glob("[0-9]*"))) == 3


def test_what_a_table_keeps_is_not_moved(command, photos, tmp_path):
    table = tmp_path / "copies.csv"
    command("duplicates", photos, "--csv", table)
    rows = table.read_text()
    for name in ("01-doubled.png", "01-half.png", "01-75.jpg"):
        kept = "no" if name == "01-doubled.png" else "yes"
        rows = re.sub(rf",(yes|no),{name}", f",{kept},{name}", rows)
    table.write_text("kind,keep,path\nnear,no,elsewhere/01-half.png\n")
    nothing = command("duplicates", photos, "--keep", table, "--move", tmp_path / "aside")
    assert f"3 groups unchanged: {table} keeps all of their images" in " ".join(nothing.stderr.split())
    assert "0 images moved" in nothing.stdout
    table.write_text(rows)
    done = command("duplicates", photos, "--keep", table, "--move", tmp_path / "aside")
    assert "20 images moved" in done.stdout, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines() if "01-half.png" in line] == ["keep"]
    assert sorted(file.name for file in photos.glob("01-*")) == ["01-75.jpg", "01-half.png"]


def test_exact_copies_are_linked_and_others_stay(command, photos):
    shutil.copy(photos / "00-75.jpg", photos / "equal.jpg")
    for files in ("1 file", "0 files"):
        done = command("duplicates", photos, "--link", "--kind", "exact")
        assert f"{files} replaced by hard links to equal files" in done.stdout, done.stderr
    assert (photos / "equal.jpg").samefile(photos / "00-75.jpg")


def test_copies_in_another_folder_are_found(command, photos, tmp_path):
    (tmp_path / "test").mkdir()
    photograph(0, 100).save(tmp_path / "test" / "seen.png")
    photograph(9).save(tmp_path / "test" / "unseen.png")
    (group,) = json.loads(command("duplicates", tmp_path / "test", "--against", photos, "--json").stdout)["groups"]
    assert str(tmp_path / "test" / "seen.png") in {image["path"] for image in group["images"]}
    assert group["keep"].startswith(str(photos))


def test_the_images_of_an_index_are_compared(command, make, few, tmp_path):
    run = make()
    images = shutil.copytree(few[0], tmp_path / "images")
    shutil.copy(sorted(images.glob("*/*.png"))[0], images / "copy $1_3.png")
    store = run.index(images).place
    told = json.loads(command("duplicates", run.folder, "--store", store, "--kind", "exact", "--json").stdout)
    (group,) = told["groups"]
    assert "copy $1_3.png" in {image["path"] for image in group["images"]}
    assert (group["images"][0]["width"], group["images"][0]["height"]) == (8, 8)
    assert run.duplicates(kinds=["exact"]).as_json() == told


def test_a_file_of_vectors_is_compared(command, tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 8))
    rows[7] = rows[3]
    np.savez(tmp_path / "vectors.npz", embeddings=rows)
    told = json.loads(command("duplicates", tmp_path / "vectors.npz", "--json").stdout)
    same = [group for group in told["groups"] if group["kind"] == "same"]
    assert [sorted(image["path"] for image in group["images"]) for group in same] == [["3", "7"]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--kind", "nearly"), "--kind"),
        (("--keep", "nowhere"), "--keep nowhere: no image is below"),
        (("--keep", "nowhere.csv"), "--keep nowhere.csv: no such file; name a table"),
        (("--keep", "copies.csv", "--against", "PHOTOS"), "with --against, the images of"),
        (("--radius", 3), "--radius 3: wanted a distance above 0 and at most 2"),
        (("--link", "--move", "aside"), "use one of them"),
        (("--against", "PHOTOS"), "it shares images with"),
        (("--move", "PHOTOS/aside"), "it is inside "),
        (("--undo", "aside", "--kind", "exact"), "--undo cannot be combined"),
        (("--turned", "--kind", "exact"), "--turned finds near copies only; add --kind near"),
        (("--by", "embeddings"), "is not a run; name the folder of a run, or leave out --by"),
        (("--undo", "aside"), "no list of moved images"),
        (("--delete",), "--move FOLDER moves them"),
    ],
)
def test_wrong_use_is_one_line(command, photos, options, told):
    options = [str(option).replace("PHOTOS", str(photos)) for option in options]
    done = command("duplicates", photos, *options)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert told in done.stderr
    assert len(list(photos.iterdir())) == 24


def test_a_folder_without_images_is_an_error(command, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no images found; their names" in command("duplicates", tmp_path / "empty").stderr
    assert "no such folder" in command("duplicates", tmp_path / "gone").stderr


def test_another_tool_finds_the_copies_of_the_command(photos):
    read = []
    chosen = find(photos, ["00-75.jpg", "00-40.jpg", "01-75.jpg"], 0.3, "01-75.jpg", listener=read.append)
    assert [[image.path for image in group.images] for group in chosen.groups] == [["00-75.jpg", "00-40.jpg"]]
    assert chosen.as_json()["groups"][0]["keep"] == "00-75.jpg"
    assert read == [1, 2, 3]


def test_without_search_a_folder_is_compared(runs, photos, command, block):
    block("search")
    assert "3 groups with 21 of 24 images" in " ".join(command("duplicates", photos).stdout.split())
    refused = command("duplicates", runs[0])
    assert refused.returncode == 2
    assert "pml-ext duplicates RUN needs the plugin 'search', which is blocked (by PML_EXT_BLOCK)" in refused.stderr


def test_without_copies_the_rest_works(make, few, command, block):
    run = make()
    index = run.index(few[0])
    block("copies")
    with pytest.raises(PluginError, match="TrainedRun.duplicates needs the plugin 'copies', which is blocked"):
        run.duplicates()
    image = index.folder / index.embedded.paths[0]
    assert command("query", run.folder, image, "--store", index.place).returncode == 0
    assert "No such command 'duplicates'" in command("duplicates", few[0]).stderr

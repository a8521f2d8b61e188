"""Copies for other tools, and what is missing without one of them."""

import pytest

from pml_ext.errors import PluginError
from pml_ext_copies.service import find

from ..search.photographs import write_copies


@pytest.fixture
def folder(tmp_path):
    """Two photographs of eight versions each."""
    for number in range(2):
        write_copies(tmp_path / "photos", number)
    return tmp_path / "photos"


def test_another_tool_finds_the_copies_of_the_command(folder):
    read = []
    chosen = find(folder, ["00-75.jpg", "00-40.jpg", "01-75.jpg"], 0.3, "01-75.jpg", listener=read.append)
    assert [[image.path for image in group.images] for group in chosen.groups] == [["00-75.jpg", "00-40.jpg"]]
    assert chosen.as_json()["groups"][0]["keep"] == "00-75.jpg"
    assert read == [1, 2, 3]


def test_without_search_a_folder_is_compared(runs, folder, command, block):
    block("search")
    done = command("duplicates", folder)
    assert (done.returncode, "2 groups with 14 of 16 images" in " ".join(done.stdout.split())) == (0, True), done.stderr
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

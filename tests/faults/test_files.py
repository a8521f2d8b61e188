"""Files of a run and an export, damaged in one way each."""

import pytest

from pml_ext_train.files.checksums import SUMS, read_sums

from . import files


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return files.Made(tmp_path_factory.mktemp("files"))


# What each folder holds, so that this file says what a new kind of file wants.
KNOWN = {
    "finished": {"", "checkpoints", "figures", "records", "tensorboard", "tensorboard/epochs"},
    "interrupted": {"", "checkpoints", "records", "tensorboard", "tensorboard/epochs"},
    "export": {""},
}


@pytest.mark.parametrize("what", KNOWN)
def test_damaged_files_are_reported_or_restored(made, what):
    names = made.files(what)
    assert {name.rpartition("/")[0] for name in names} == KNOWN[what]
    wrong = {}
    every = {"finished": 4, "interrupted": 2}.get(what, 1)
    for number, name in enumerate(names[::every]):
        ways = files.DAMAGES if what == "export" else [files.DAMAGES[number % len(files.DAMAGES)]]
        for damage in ways:
            if text := files.surprise(made, what, name, damage):
                wrong[name, damage] = text
    assert wrong == {}


@pytest.mark.parametrize("name", ["report.html", "checkpoints/last.pt"])
def test_a_damaged_checkpoint_keeps_its_checksum(made, name):
    assert files.surprise(made, "finished", name, "flipped") == ""


def test_every_file_of_a_run_has_a_checksum(made):
    names = made.files("finished")
    assert len(names) > 15
    assert {*read_sums(made.place / "one" / "finished"), SUMS} == {*names}

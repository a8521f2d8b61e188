"""Files of a run and an export, damaged in one way each."""

import pytest

from pml_ext_train.files.checksums import SUMS, changed_files

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


def test_every_damaged_file_is_noticed(made):
    """By the checksums, without a run."""
    names = made.files("finished")
    assert len(names) > 15
    listed = {line.partition("  ")[2] for line in (made.place / "one" / "finished" / SUMS).read_text().splitlines()}
    assert listed == {*names} - {SUMS}
    for name in sorted(listed):
        for damage in files.DAMAGES:
            folder = made.damaged("finished", name, damage, made.place / "damaged")
            same = (folder / name).read_bytes() == (made.place / "one" / "finished" / name).read_bytes()
            assert changed_files(folder) == ([] if same else [name]), damage

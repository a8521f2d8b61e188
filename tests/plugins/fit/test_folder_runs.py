"""Which run a folder of photographs has."""

import pytest

from pml_ext_fit import folder_runs


@pytest.fixture(autouse=True)
def all_runs_are_finished(monkeypatch):
    monkeypatch.setattr(folder_runs, "is_finished", lambda run: run.is_dir())


def test_a_folder_is_known_by_its_path_alone(tmp_path):
    photos = tmp_path / "my photos"
    run = tmp_path / "run"
    for folder in (photos, run, tmp_path / "other" / "my photos"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(photos)
    assert folder_runs.remembered(photos) is None
    folder_runs.remember(photos, run)
    assert folder_runs.remembered(photos) == run
    assert folder_runs.remembered(tmp_path / "link") == run
    assert folder_runs.remembered(tmp_path / "other" / "my photos") is None
    assert list(photos.iterdir()) == []


def test_a_run_that_was_removed_is_forgotten(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    folder_runs.remember(tmp_path, run)
    run.rmdir()
    assert folder_runs.remembered(tmp_path) is None
    (folder_runs.home_of(tmp_path) / "run.json").write_text("cut {")
    assert folder_runs.remembered(tmp_path) is None

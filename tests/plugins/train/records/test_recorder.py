"""Records: which numbers, under which names, and cut back where a run goes on."""

import shutil

import pytest

from pml_ext_train.records.database import TEST

from ..training.written_records import csv_rows, everything, opened, record, scalars, tables

pytestmark = pytest.mark.usefixtures("numbers_of_equal_width")


def test_a_test_of_epoch_0_is_written_once(tmp_path):
    """Where nothing is trained, epoch 0 is tested, and tested again by a run that goes on."""
    for _ in range(2):
        records = opened(tmp_path, 0, 0)
        records.add(0, {TEST: {"recall_at_1": 0.5}})
        records.close()
    assert tables(tmp_path)[TEST] == [{"~iteration~": 0, "recall_at_1": 0.5}]


def test_tables_csv_and_events_say_the_same(tmp_path):
    records = opened(tmp_path, 0, 0)
    records.add(1, {"loss_histories": {"total_loss": 2.5}, "metric_loss_X": {"pairs": 3, "term": 0.25}})
    records.add(2, {"loss_histories": {"total_loss": 1.5}, "metric_loss_X": {"pairs": 4, "late": 9.0}})
    records.save()
    records.add(3, {"loss_histories": {"total_loss": 0.5}})
    records.close()
    assert tables(tmp_path) == {
        "loss_histories": [{"~iteration~": n, "total_loss": value} for n, value in ((1, 2.5), (2, 1.5), (3, 0.5))],
        "metric_loss_X": [
            {"~iteration~": 1, "pairs": 3, "term": 0.25, "late": None},
            {"~iteration~": 2, "pairs": 4, "term": None, "late": 9.0},
        ],
    }
    rows = csv_rows(tmp_path / "records" / "loss_histories.csv")
    assert rows == [["~iteration~", "total_loss"], ["1", "2.5"], ["2", "1.5"], ["3", "0.5"]]
    assert csv_rows(tmp_path / "records" / "metric_loss_X.csv")[1:] == [["1", "3", "0.25", ""], ["2", "4", "", "9.0"]]
    assert scalars(tmp_path) == {
        "loss_histories/total_loss": [(1, 2.5), (2, 1.5), (3, 0.5)],
        "metric_loss_X/pairs": [(1, 3.0), (2, 4.0)],
        "metric_loss_X/term": [(1, 0.25)],
        "metric_loss_X/late": [(2, 9.0)],
    }


def test_a_resumed_run_has_each_row_once(tmp_path):
    record(tmp_path / "whole", 1, 8)
    record(tmp_path / "killed", 1, 6)
    folder = tmp_path / "killed" / "records"
    (folder / "loss_histories.csv").write_bytes(b"")
    (folder / "accuracies_validation.csv").write_bytes((folder / "accuracies_validation.csv").read_bytes()[:-5])
    (folder / "of-a-component.csv").write_text("epoch,density\n1,2\n")
    record(tmp_path / "killed", 5, 8)  # the checkpoint was that of epoch 2
    record(tmp_path / "killed", 9, 8)  # and killed after the test, once more
    assert (folder / "of-a-component.csv").read_text() == "epoch,density\n1,2\n"
    (folder / "of-a-component.csv").unlink()
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")
    tested = csv_rows(folder / "accuracies_test.csv")
    assert tested == [["~iteration~", "map_at_r"], ["4", "0.5"]]


def test_records_are_never_in_the_way(tmp_path):
    words = []
    records = opened(tmp_path / "run", 0, 0, words.append)
    records.add(1, {"t": {"a": 1}})
    records.save()  # TensorBoard's thread has written its events
    shutil.rmtree(tmp_path / "run")
    records.add(2, {"t": {"a": 2}})
    for _ in range(3):
        records.save()
    records.close()
    assert words
    assert all("training continues without it" in word for word in words)
    assert not (tmp_path / "run").exists()

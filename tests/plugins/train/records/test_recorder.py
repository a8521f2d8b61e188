"""Records and files of a run: which values, under which names, cut back where it goes on; and damaged ones."""

import shutil
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils.logging_presets import HookContainer

from pml_ext import CBMLLoss, DataError, MetricVarianceRegularizer, RegularizedLoss
from pml_ext_train.files.checksums import SUMS, changed_files, read_sums, sha256_of
from pml_ext_train.records import (
    CURVE,
    TEST,
    VALIDATION,
    Records,
    loss_series,
    metric_by_epoch,
    run_files as files,
    summarize,
)
from pml_ext_train.training import Step
from pml_ext_train.training.recorded_values import RecordedValues

from ..training.written_records import csv_rows, everything, opened, record, scalars, tables


@pytest.mark.usefixtures("numbers_of_equal_width")
def test_a_test_of_epoch_0_is_written_once(tmp_path):
    """Where nothing is trained, epoch 0 is tested, and tested again by a run that goes on."""
    for _ in range(2):
        records = opened(tmp_path, 0, 0)
        records.add(0, {TEST: {"recall_at_1": 0.5}})
        records.close()
    assert tables(tmp_path)[TEST] == [{"~iteration~": 0, "recall_at_1": 0.5}]


@pytest.mark.usefixtures("numbers_of_equal_width")
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
    assert csv_rows(tmp_path / "records" / "loss_histories.csv") == [
        ["~iteration~", "total_loss"],
        ["1", "2.5"],
        ["2", "1.5"],
        ["3", "0.5"],
    ]
    assert csv_rows(tmp_path / "records" / "metric_loss_X.csv")[1:] == [["1", "3", "0.25", ""], ["2", "4", "", "9.0"]]
    assert scalars(tmp_path) == {
        "loss_histories/total_loss": [(1, 2.5), (2, 1.5), (3, 0.5)],
        "metric_loss_X/pairs": [(1, 3.0), (2, 4.0)],
        "metric_loss_X/term": [(1, 0.25)],
        "metric_loss_X/late": [(2, 9.0)],
    }


@pytest.mark.usefixtures("numbers_of_equal_width")
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
    assert csv_rows(folder / "accuracies_test.csv") == [["~iteration~", "map_at_r"], ["4", "0.5"]]


@pytest.mark.usefixtures("numbers_of_equal_width")
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


# The database


@pytest.mark.usefixtures("numbers_of_equal_width")
@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_database_is_put_aside(tmp_path, content):
    record(tmp_path, 1, 6)
    folder = tmp_path / "records"
    words = []
    (folder / "of-a-component.csv").write_text("epoch,density\n1,2\n")
    (folder / "logs.db").write_bytes(content)
    record(tmp_path, 7, 8, words.append)
    (word,) = words
    assert word.startswith(f"{folder / 'logs.db'} is damaged (")
    assert word.endswith("was renamed to damaged.db; the records start again at iteration 7")
    assert (folder / "damaged.db").read_bytes() == content
    assert [row[0] for row in csv_rows(folder / "loss_histories.csv")] == ["~iteration~", "7", "8"]
    assert (folder / "of-a-component.csv").exists()


@pytest.mark.usefixtures("numbers_of_equal_width")
def test_a_database_that_is_read_is_not_damaged(tmp_path, monkeypatch):
    record(tmp_path / "my run", 1, 6)
    folder = tmp_path / "my run" / "records"
    words = []
    before = tables(tmp_path / "my run")
    monkeypatch.setattr("pml_ext_train.records.database._LOCK_SECONDS", 0.1, raising=False)
    with closing(sqlite3.connect(folder / "logs.db")) as monitor:
        rows = monitor.execute('SELECT "~iteration~" FROM loss_histories')
        assert rows.fetchone() == (1,)  # the others are left, which keeps the file locked
        with pytest.raises(
            DataError,
            match=r"logs.db: .* \(database is locked\)\. .*type: fuser '.*/my run/records/logs.db'.* repeat the",
        ):
            record(tmp_path / "my run", 5, 8, words.append)
        rows.close()
    assert words == []
    assert not (folder / "damaged.db").exists()
    assert tables(tmp_path / "my run") == before


# Records that are read back


def test_stages_share_a_curve_and_parts_do_not(tmp_path):
    records = Records(tmp_path, 0, 0)
    for iteration in (1, 2):
        records.add(iteration, {"loss_histories": {"total_loss": 1.0}, "metric_loss_A": {"positive_loss": 1.0}})
    for iteration in (3, 4):
        terms = {"metric_loss_B": {"positive_loss": 2.0}, "metric_loss_B__modules_inner_C": {"positive_loss": 3.0}}
        records.add(iteration, {"loss_histories": {"total_loss": 1.0}, **terms})
    records.close()
    assert loss_series(tmp_path, ["positive_loss", "positive_loss"]) == {
        "loss": ([1, 2, 3, 4], [1.0] * 4),
        "positive": ([1, 2, 3, 4], [1.0, 1.0, 2.0, 2.0]),
        "positive (C)": ([3, 4], [3.0, 3.0]),
    }


def test_a_metric_by_epoch_of_validation_and_test(tmp_path):
    assert metric_by_epoch(tmp_path, "nmi") == {}
    records = Records(tmp_path, 0, 0)
    for epoch in (1, 2):
        records.add(epoch, {CURVE: {"nmi": epoch / 4}, VALIDATION: {"nmi": 1 + epoch / 4}})
    records.close()
    assert metric_by_epoch(tmp_path, "nmi") == {"validation": ([1, 2], [1.25, 1.5]), "test": ([1, 2], [0.25, 0.5])}
    assert metric_by_epoch(tmp_path, "map_at_r") == {}


def test_the_summary_of_one_run_has_no_spread():
    results = [{"recipe": name, "after": {"recall_at_1": 0.5}} for name in ("a@1", "a@2")]
    assert summarize(results)["a@1"]["after"]["recall_at_1"] == {"mean": 0.5, "std": None}


def test_a_failed_metric_is_not_summarized():
    results = [
        {"recipe": "a", "after": {"recall_at_1": 0.5, "theirs": 1.0}},
        {"recipe": "a", "after": {"recall_at_1": 0.7}},
    ]
    assert summarize(results)["a"]["after"].keys() == {"recall_at_1"}


# Recorded values


EMBEDDINGS = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
LABELS = torch.arange(12) // 3


def rows_of(held):
    values = [value.item() if torch.is_tensor(value) else value for value in held.values()]
    rows = dict(held.rows(Step(1.0, EMBEDDINGS, values)))
    assert rows.pop("loss_histories") == {"total_loss": 1.0}
    return rows


@pytest.mark.parametrize(
    "make",
    [
        lambda: RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
        lambda: losses.MarginLoss(),  # it has a parameter of one element
        lambda: losses.MultiSimilarityLoss(),
    ],
)
def test_the_terms_are_those_that_pmls_hooks_record(make, tmp_path, monkeypatch):
    """The names of tables and columns, and the values."""
    record_keeper = pytest.importorskip("record_keeper")
    monkeypatch.setattr("pytorch_metric_learning.utils.common_functions.COLLECT_STATS", True)
    loss = make()
    miner = miners.MultiSimilarityMiner()
    optimizers = {"trunk_optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.25)}
    loss(EMBEDDINGS, LABELS, miner(EMBEDDINGS, LABELS))

    keeper = record_keeper.RecordKeeper(
        None, record_keeper.RecordWriter(str(tmp_path / "theirs")), ["_record_these", "_record_these_stats"]
    )

    trainer = SimpleNamespace(
        iteration=0,
        loss_tracker=SimpleNamespace(losses={"total_loss": 1.0}, loss_weights={}),
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miner},
        models={},
        optimizers=optimizers,
        get_global_iteration=lambda: 7,
    )
    HookContainer(keeper, save_models=False).end_of_iteration_hook(trainer)
    theirs = {
        (table, column, values[7])
        for table, columns in keeper.record_writer.records.items()
        if table != "loss_histories"
        for column, values in columns.items()
        if not isinstance(values[7], list)
    }
    ours = {
        (table, column, value)
        for table, row in rows_of(RecordedValues(loss, miner, optimizers)).items()
        for column, value in row.items()
    }
    roots = ("metric_loss_", "tuple_miner_", "trunk_optimizer_")
    assert {entry for entry in theirs if entry[0].startswith(roots)} == {e for e in ours if e[0].count("__mod") < 2}
    deep = [
        {(table.rpartition("__modules_")[2], *rest) for table, *rest in found if (table, *rest) not in near}
        for found, near in ((theirs, ours), (ours, theirs))
    ]
    assert deep[0] == deep[1]  # inside a part of the loss PML's names begin with that part, ours with the loss


def test_what_is_no_number_is_not_recorded(tmp_path):
    loss = torch.nn.Module()
    loss._record_these = ["names", "many", "here", "gone"]
    loss._record_these_stats = ["flag"]
    loss.names = ["a"]
    loss.many = torch.zeros(3)
    loss.here = torch.tensor([2.0])
    loss.flag = True
    assert rows_of(RecordedValues(loss, None, {})) == {"metric_loss_Module": {"here": 2.0, "flag": True}}
    records = Records(tmp_path, 0, 0)
    records.add(1, {"with a-strange.name": {"nan": float("nan"), "flag": True}})
    records.close()
    assert tables(tmp_path)["with_a_strange_name"] == [{"~iteration~": 1, "nan": None, "flag": 1}]


# The files of a run


def test_a_run_is_finished_with_its_report(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    assert files.is_finished(out)
    assert files.read_finished(out)[1] == []
    assert files.tables_of_run(out)["run"]["recipe"] == "cbml/digits"
    (out / "report.html").unlink()
    (out / "checkpoints" / "before.pt").unlink()  # nothing is made from it again
    (out / "network.json").write_text("{}")
    assert files.read_finished(out)[1] == ["network.json", "report.html"]
    (out / "checkpoints" / "model.pt").unlink()
    assert files.read_finished(out)[1] == ["checkpoints/model.pt", "network.json", "report.html"]
    (out / "checkpoints" / "last.pt").unlink()
    with pytest.raises(DataError, match="model.pt is missing or damaged, .* to start over at the first epoch"):
        files.read_finished(out)
    assert not files.is_finished(tmp_path)


OF_A_RUN = [
    "checkpoints/model.pt",
    "figures/loss.png",
    "metrics.json",
    "network.json",
    "recipe.toml",
    "records/logs.db",
    "report.html",
    "tensorboard/epochs/events",
]
OTHERS = [
    "notes.txt",
    "figures/mine.txt",
    "collection/rows",
    SUMS,
    ".metrics.json.5-6.tmp",
    "checkpoints/.model.pt.5.tmp",
]


def made(place):
    for name in [*OF_A_RUN, *OTHERS]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / SUMS).unlink()


def test_only_a_runs_own_files_have_checksums(tmp_path):
    """A checkpoint has its checksum from when it was written; that of a damaged file tells of the damage."""
    made(tmp_path)
    files.write_checksums(tmp_path)
    assert read_sums(tmp_path) == {name: sha256_of(tmp_path / name) for name in OF_A_RUN}
    for name in ("checkpoints/model.pt", "records/logs.db", "report.html"):
        (tmp_path / name).write_text("changed")
    files.write_checksums(tmp_path, lost=["records/logs.db"])
    assert sorted(changed_files(tmp_path)) == ["checkpoints/model.pt", "records/logs.db"]


def test_advice_of_an_unfinished_run_is_to_resume(tmp_path):
    command = f"pml-ext train RECIPE --out {tmp_path}"
    assert str(files.no_finished_run(tmp_path, files.METRICS)) == (
        f"{tmp_path}: no finished run (no metrics.json in it); type: {command}"
    )
    spaced = tmp_path / "my run"
    assert str(files.no_finished_run(spaced, files.METRICS)).endswith(f"pml-ext train RECIPE --out '{spaced}'")
    (tmp_path / "checkpoints").mkdir()
    assert str(files.no_finished_run(tmp_path, files.METRICS)).endswith(f"type: {command} --resume")


def test_only_the_files_of_a_run_are_removed(tmp_path):
    made(tmp_path)
    (tmp_path / SUMS).write_text("sums")
    (tmp_path / "choice.json").write_text("{}")
    files.remove_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        "collection",
        "choice.json",
        ".metrics.json.5-6.tmp",
    }

"""Which attributes of losses, miners and optimizers a run records."""

from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import common_functions
from pytorch_metric_learning.utils.logging_presets import HookContainer

from pml_ext import CBMLLoss, MetricVarianceRegularizer, RegularizedLoss
from pml_ext_train.records.recorder import Records
from pml_ext_train.training import Step
from pml_ext_train.training.recorded_values import RecordedValues

from .written_records import tables

EMBEDDINGS = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
LABELS = torch.arange(12) // 3


@pytest.fixture
def collecting(monkeypatch):
    monkeypatch.setattr(common_functions, "COLLECT_STATS", True)


def rows_of(held):
    values = [value.item() if torch.is_tensor(value) else value for value in held.values()]
    rows = dict(held.rows(Step(1.0, EMBEDDINGS, values)))
    assert rows.pop("loss_histories") == {"total_loss": 1.0}
    return rows


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize(
    "make",
    [
        lambda: RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
        lambda: losses.MarginLoss(),  # it has a parameter of one element
        lambda: losses.MultiSimilarityLoss(),
    ],
)
def test_the_terms_are_those_that_pmls_hooks_record(make, tmp_path):
    """The names of tables and columns, and the values."""
    record_keeper = pytest.importorskip("record_keeper")
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
    rows = rows_of(RecordedValues(loss, miner, optimizers))
    ours = {(table, column, value) for table, row in rows.items() for column, value in row.items()}
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

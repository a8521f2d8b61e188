"""Trackers: the same values at the same steps in all of them, resumed runs, and trackers that fail."""

import json
import sys
import time

import pytest

from pml_ext.errors import MissingExtraError, StoppedError
from pml_ext_train.cli.diagnosis import diagnosis
from pml_ext_train.launch.launch import train
from pml_ext_train.records.trackers import of_epochs
from pml_ext_train.training.listener import Silence

from ....overrides import typed
from ..training.whole_runs import Ear
from ..training.written_records import scalars, tables

SHORT = [
    "schedule.epochs=2",
    "schedule.milestones=[1]",
    "sampler.iterations=3",
    "model.trunk.width=4",
    "evaluation.validation=0.3",
    "evaluation.select=map_at_r",
    "sampler.batch_size=56",
]
pytestmark = pytest.mark.usefixtures("without_report")


def of_tensorboard(folder):
    return {
        tag: {step: pytest.approx(value, rel=1e-6) for step, value in points} for tag, points in scalars(folder).items()
    }


def in_training(values):
    return {name: value for name, value in values.items() if "histories" in name or "accuracies" in name}


def of_record_keeper(folder):
    found = {}
    for table, rows in tables(folder).items():
        for row in rows:
            step = row.pop("~iteration~")
            for column, value in row.items():
                if value is not None:
                    found.setdefault(f"{table}/{column}", {})[step] = value
    return found


def finished(folder, *settings, **more):
    (result,) = train("cbml/digits", overrides=typed([*SHORT, *settings]), out=folder, **more)
    return result


class StopsAt(Silence):
    """Ends a run after an iteration of an epoch."""

    def __init__(self, *place):
        self.place = place

    def iteration(self, epoch, done, *_):
        if (epoch, done) == self.place:
            raise StoppedError(2, "stopped")


PLUGIN = """
    from pml_ext.plugin import hookimpl

    seen = []

    class Kept:
        def __init__(self, folder, recipe, tag="none"):
            self.folder, self.recipe, self.tag, self.values, self.ends = folder, recipe, tag, {}, []
            seen.append(self)

        def log(self, values, step):
            for name, value in values.items():
                assert step not in self.values.setdefault(name, {})
                self.values[name][step] = value

        def finish(self, status, metrics, report):
            self.ends.append((status, "after" in metrics))

    class Broken(Kept):
        def log(self, values, step):
            self.values[step] = None
            raise RuntimeError("the server is gone")

        finish = log

    class NeverBegins:
        def __init__(self, folder, recipe):
            raise OSError("no network")

    @hookimpl
    def pml_ext_trackers():
        return {"kept": Kept, "broken": Broken, "never": NeverBegins, "records": Kept}
"""


@pytest.fixture
def seen(install_plugin, isolated_registry):
    """The trackers of a plugin, as they are made."""
    install_plugin("others", PLUGIN)
    diagnosis()
    return sys.modules["others"].seen


def test_a_plugins_tracker_has_the_values_of_tensorboard(tmp_path, seen):
    """Also with two trackers of one name, and with one that has the name of record-keeper's folder."""
    finished(tmp_path / "run", 'track=["tensorboard", {name="kept", tag="mine"}, {name="kept", tag="b"}, "records"]')
    kept, second, third = seen
    assert [each.tag for each in seen] == ["mine", "b", "none"]
    assert kept.values == of_record_keeper(tmp_path / "run") == of_tensorboard(tmp_path / "run")
    assert kept.values == second.values == third.values
    assert sorted(kept.values["loss_histories/total_loss"]) == [1, 2, 3, 4, 5, 6]
    assert sorted(kept.values["accuracies_validation/map_at_r"]) == [1, 2]
    assert (kept.folder, kept.tag, kept.recipe["loss.name"]) == (tmp_path / "run", "mine", "cbml")
    assert kept.ends == [("finished", True)]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["plugins"]["others"] == {
        "distribution": "others",
        "version": "1.0",
    }


def test_trackers_that_fail_change_nothing_else(tmp_path, seen):
    result = finished(tmp_path / "run", 'track=["broken", "never", "kept"]')
    broken, kept = seen
    plain = finished(tmp_path / "plain", "track=[]")
    nothing = "the plugin 'others': recording failed"
    assert result["warnings"] == [
        f"never of {nothing} (OSError: no network); training continues without it",
        f"broken of {nothing} (RuntimeError: the server is gone); training continues without it",
    ]
    assert len(broken.values) == 1
    assert kept.values == of_record_keeper(tmp_path / "run") == of_record_keeper(tmp_path / "plain")
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert result["after"] == plain["after"]


def test_a_missing_tracker_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    ear = Ear()
    with pytest.raises(MissingExtraError, match=r'track.name = .wandb. needs .*pip install "pml-ext\[wandb\]"'):
        finished(tmp_path / "run", "track=wandb", listener=ear)
    assert not any("testing" in text for text in ear.lines)


def test_a_resumed_run_may_change_its_trackers(tmp_path, seen):
    with pytest.raises(StoppedError):
        finished(tmp_path / "run", "track=kept", listener=StopsAt(2, 1))
    finished(tmp_path / "run", 'track=["kept", "tensorboard"]', resume=True)
    assert [each.ends for each in seen] == [[("stopped", False)], [("finished", True)]]
    assert sorted(seen[1].values["loss_histories/total_loss"]) == [4, 5, 6]


def entries_of_a_log(content):
    """The entries of a log in LevelDB's format, after a header of 7 bytes: blocks of 32 KiB, records of parts."""
    place = 7
    entry = b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        end = place + 7 + length
        if end > len(content):
            return  # still being written
        entry += content[place + 7 : end]
        place = end
        if kind in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def test_weights_and_biases_offline_has_the_same_values(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not finished(tmp_path / "run", 'track=["wandb", "tensorboard"]')["warnings"]
    (log,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    for _ in range(600):  # W&B's own process writes on after the run's end
        records = [Record.FromString(entry) for entry in entries_of_a_log(log.read_bytes())]
        if any(record.HasField("exit") for record in records):
            break
        time.sleep(0.1)
    found = {}
    for record in records:
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name in [name for name in items if "/" in name]:
            step = items["epoch" if of_epochs(name) else "iteration"]
            found.setdefault(name, {})[step] = items[name]
    assert found == of_tensorboard(tmp_path / "run")


def test_mlflow_has_resumed_values_only_once(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")

    with pytest.raises(StoppedError):
        finished(tmp_path / "run", 'track=["mlflow", "tensorboard"]', listener=StopsAt(2, 2))
    result = finished(tmp_path / "run", 'track=["mlflow", "tensorboard"]', resume=True)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("pml-ext").experiment_id])
    found = {}
    for name in run.data.metrics:
        history = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        found[name] = dict(history)
        assert len(found[name]) == len(history)
    assert found["after/map_at_r"] == {0: result["after"]["map_at_r"]}
    assert in_training(found) == in_training(of_tensorboard(tmp_path / "run"))
    assert (run.info.status, run.data.params["loss.name"]) == ("FINISHED", "cbml")


def test_trackio_has_the_same_values(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "store")
    finished(tmp_path / "run", 'track=["trackio", "tensorboard"]')
    name = json.loads((tmp_path / "run" / "trackers.json").read_text())["trackio"]
    found = {}
    for row in SQLiteStorage.get_logs("pml-ext", name):
        for key, value in in_training(row).items():
            found.setdefault(key, {})[row["step"]] = value
    assert found == in_training(of_tensorboard(tmp_path / "run"))

"""Checkpoints: written, damaged, resumed from, and refused where they belong to other runs."""

import re
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pytorch_metric_learning import samplers

from pml_ext.errors import ConfigError, DataError, PluginWarning, UnwritableError
from pml_ext.serialization import sampler_state, set_sampler_state
from pml_ext_train.training import Checkpointer, checkpoint, open_run
from pml_ext_train.training.state import restore, start_from, state_of

from ...search.conftest import flip, halve
from .whole_runs import Ear, built, quick, same

REMEDY = dict.fromkeys(("last", "previous", "best"), r"delete the folder .*checkpoints and train with --resume") | {
    "within": r"the epoch starts over",
    "model": r"train with --resume to restore it from last.pt",
}


def a_state(name):
    return {"weights of " + name: torch.zeros(400), "epoch": 1, "of": "run"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run" / "checkpoints"


@pytest.mark.parametrize("name", REMEDY)
def test_a_damaged_checkpoint_names_its_path(folder, name):
    path = folder / f"{name}.pt"
    with pytest.raises(DataError, match=rf"{name}.pt: no such checkpoint; {REMEDY[name]}"):
        checkpoint.load(path)
    checkpoint.save(path, a_state(name))
    assert checkpoint.load(path).keys() > a_state(name).keys()
    whole = path.read_bytes()
    flipped = [bytearray(whole) for _ in range(20)]
    for number, content in enumerate(flipped):
        content[number * (len(whole) - 1) // 19] ^= 1 << number % 8
    contents = [whole[:500], whole[:-1], whole + b"\0", bytes(500), b"no checkpoint", b"\x80", *flipped]
    for content in (b"", *contents):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}.pt: the file is damaged.*; {REMEDY[name]}") as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)
        assert "weights_only" not in str(caught.value)  # what torch advises instead
    checkpoint.save(path, a_state(name) | {"of": "another run"})
    with pytest.raises(DataError, match=rf"{name}.pt: it belongs to a run with another recipe or seed; {REMEDY[name]}"):
        checkpoint.load(path, of="this run")


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", REMEDY)
def test_no_code_of_a_checkpoints_author_is_run(folder, name):
    """With a right checksum too."""
    path = folder / f"{name}.pt"
    written = folder / "written"
    checkpoint.save(path, a_state(name) | {"epoch": Opens(written)})
    with pytest.raises(DataError, match=rf"{name}.pt: it cannot be read here \(UnpicklingError\): ") as caught:
        checkpoint.load(path)
    assert "weights_only" not in str(caught.value)
    assert "use the versions that wrote it; if it is damaged, " in str(caught.value)
    assert not written.exists()


def test_states_of_other_versions_name_the_difference(tmp_path):
    with (
        pytest.raises(DataError) as caught,
        checkpoint.errors_with_path(tmp_path / "last.pt", {"versions": checkpoint.versions() | {"torch": "1.13.0"}}),
    ):
        torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())
    text = str(caught.value)
    assert "last.pt: it does not fit the run's recipe (RuntimeError: " in text
    assert "size mismatch for weight" in text
    assert f"(written by torch 1.13.0 (now {checkpoint.versions()['torch']})); delete the folder" in text
    assert "\n" not in text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make",
    [
        lambda: samplers.MPerClassSampler(np.arange(40) % 4, 2, 8, 40),
        lambda: samplers.HierarchicalSampler(np.stack([np.arange(400) % 8, np.arange(400) % 4]).T, 8, 4, 4),
        lambda: torch.utils.data.RandomSampler(range(40)),
    ],
    ids=["m-per-class", "hierarchical", "random"],
)
def test_samplers_continue_where_they_were_saved(folder, make):
    one = make()
    other = make()
    list(one)
    state = {"sampler": sampler_state(one), "random": checkpoint.random_state()}
    checkpoint.save(folder / "x.pt", state)
    torch.load(folder / "x.pt", weights_only=True)  # without permissions
    wanted = [list(one), list(one)]
    state = checkpoint.load(folder / "x.pt")
    set_sampler_state(other, state["sampler"])
    checkpoint.set_random_state(state["random"])
    assert [list(other), list(other)] == wanted


class OfItsOwn:
    """A sampler without a ``state_dict``, with a generator of its own."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.order = [seed, 2.5, "x", None]


def test_an_unsaveable_attribute_is_named_once(folder, recwarn):
    one = OfItsOwn(1)
    with pytest.warns(
        PluginWarning, match=r"OfItsOwn: checkpoints leave out its generator \(a Generator\); a state_dict"
    ):
        checkpoint.save(folder / "x.pt", {"sampler": sampler_state(one)})
    recwarn.clear()
    assert "generator" not in sampler_state(one)
    assert not recwarn.list
    other = OfItsOwn(2)
    set_sampler_state(other, checkpoint.load(folder / "x.pt")["sampler"])
    assert other.order == one.order


@pytest.mark.parametrize("size", [3, 300_000])  # torch hides the error of the system where it writes in several parts
def test_a_full_disk_has_the_systems_message(folder, size):
    checkpoint.save(folder / "last.pt", a_state("last"))
    open_file = Path.open

    def opened(path, mode="r", *arguments, **options):
        if path.name.startswith(".last.pt.") and mode == "wb":
            return open_file(Path("/dev/full"), mode, *arguments, **options)
        return open_file(path, mode, *arguments, **options)

    text = r"last.pt: cannot be written \(No space left on device\)"
    with patch.object(Path, "open", opened), pytest.raises(UnwritableError, match=text):
        checkpoint.save(folder / "last.pt", a_state("other") | {"network": torch.zeros(size)})
    assert "weights of last" in checkpoint.load(folder / "last.pt")
    assert [path.name for path in folder.iterdir()] == ["last.pt"]


# Where runs go on


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_damaged_last_checkpoint_costs_an_epoch(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    (out / "metrics.json").unlink()
    for name, place in (("checkpoints/last.pt", 5000), ("recipe.toml", 300)):
        flip(out / name, place)
    assert same(quick(out, resume=True, listener=ear), finished[1])
    damaged = r"last\.pt: the file is damaged \(its checksum differs from SHA256SUMS\); the run resumes from"
    assert re.search(rf"{damaged}.*previous\.pt \(epoch 2\)", ear.warnings[0])
    assert (out / "recipe.toml").read_bytes() == (finished[0] / "recipe.toml").read_bytes()


@pytest.mark.parametrize(
    ("damage", "has_sums", "kept"), [(flip, True, 1), (halve, False, 1), (None, True, 2), (None, False, 2)]
)
def test_only_intact_checkpoints_become_the_previous_one(tmp_path, damage, has_sums, kept):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    for epoch in (1, 2):
        checkpoint.save_last(last, {"epoch": epoch})
    if not has_sums:
        (tmp_path / "SHA256SUMS").unlink()
    if damage is not None:
        damage(last)
    checkpoint.save_last(last, {"epoch": 3})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == kept
    checkpoint.save_last(last, {"epoch": 4})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == 3


# Weights of other runs


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = state_of(run) | {"processes": 4}
    with pytest.raises(
        ConfigError,
        match=r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train",
    ):
        restore(run, run.checkpoint("last"), state)


def test_foreign_or_missing_weights_are_refused(runs, tmp_path):
    with pytest.raises(DataError, match="it belongs to a run with another recipe or seed"):
        open_run(runs[1], 0, "cpu")
    (tmp_path / "run").mkdir()
    shutil.copy(runs[0] / "recipe.toml", tmp_path / "run")
    with pytest.raises(DataError, match="no such checkpoint"):
        open_run(tmp_path / "run", 0, "cpu")


def test_weights_of_other_trunks_are_refused(tmp_path):
    run = built(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"model.init: .*none is not a finished run \(.*model.pt is missing\); give the folder"
    ):
        start_from(run, tmp_path / "none")
    Checkpointer(built(tmp_path / "wide", "model.trunk.width=16")).save_model()
    with pytest.raises(
        ConfigError, match=r"model.init: the trunk differs from that of .*wide .*trunk and the image size"
    ):
        start_from(run, tmp_path / "wide")

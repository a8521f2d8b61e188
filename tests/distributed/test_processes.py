"""Ranks, the process group of a device, and objects that processes exchange."""

import pytest
import torch

from pml_ext.distributed import process_group, processes
from pml_ext.errors import ConfigError

pytestmark = pytest.mark.timeout(0)  # two processes on a busy machine take as long as they take


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_the_group_of_a_device(monkeypatch, device, backend):
    asked = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    with process_group(device):
        assert asked == [backend]
    wanted = "no way for several processes to work together on abacus; wanted --device"
    with pytest.raises(ConfigError, match=wanted), process_group("abacus"):
        pass


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with processes.process_group("abacus"):
        assert not torch.distributed.is_initialized()
        assert (processes.num_processes(), processes.rank()) == (1, 0)
        assert processes.from_rank_0("x") == "x"
        assert processes.from_ranks("x") == processes.gather_objects("x") == ["x"]
        assert processes.max_over_ranks(-3) == -3


def test_objects_are_exchanged_between_two_processes(collectives):
    for mine, saved in enumerate(collectives):
        assert saved["processes"] == {
            "number": 2,
            "rank": mine,
            "from rank 0": {"rank": 0},
            "from ranks": [] if mine else ["of 0", "of 1"],
            "gathered": [0, 10],
            "greatest": 5,
            "device": "cpu",  # gloo sends what is there
        }


def test_processes_wait_for_each_other_and_rank_0(collectives):
    first, second = (saved["order"] for saved in collectives)
    assert first["went on"] >= second["came"]
    assert second["entered"] >= first["left"]

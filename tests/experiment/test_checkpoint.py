"""Checkpoints that cannot be used are named in one line, with what to do."""

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext.experiment import checkpoint

REMEDY = {
    "last": r"delete the folder .*checkpoints and train with --resume",
    "model": r"delete .*run/metrics.json and train with --resume",
    "best": r"delete the folder .*checkpoints and train with --resume",
    "before": r"only a new run",
}


@pytest.mark.parametrize("name", REMEDY)
@pytest.mark.parametrize("trusted", [True, False])
def test_a_damaged_checkpoint_is_one_line_with_its_path(tmp_path, name, trusted):
    path = tmp_path / "run" / "checkpoints" / f"{name}.pt"
    with pytest.raises(DataError, match=rf"{name}.pt: no such checkpoint; {REMEDY[name]}"):
        checkpoint.load(path, trusted=trusted)
    path.parent.mkdir(parents=True)
    torch.save({"embeddings": torch.zeros(400)}, path)
    whole = path.read_bytes()
    damaged = {"the file is empty": [b""], "the file is damaged": [whole[:500], bytes(500), b"no checkpoint", b"\x80"]}
    for reason, contents in damaged.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError, match=rf"{name}.pt: {reason}.*; {REMEDY[name]}") as caught:
                checkpoint.load(path, trusted=trusted)
            assert "\n" not in str(caught.value)
            assert "weights_only" not in str(caught.value)  # what torch advises instead
    torch.save({"something": "else"}, path)
    with pytest.raises(DataError, match=rf"{name}.pt: the file holds something else \(no '.*' in it\); {REMEDY[name]}"):
        checkpoint.load(path, trusted=trusted)


def test_a_state_that_does_not_fit_is_refused_by_its_files_name(tmp_path):
    with pytest.raises(DataError, match=r"model.pt: it does not fit the run's recipe \(RuntimeError: .*; delete"):  # noqa: SIM117
        with checkpoint.taking(tmp_path / "model.pt"):
            torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())

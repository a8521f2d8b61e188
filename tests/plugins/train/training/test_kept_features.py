"""Features of the splits of a run: shared by seeds, and of several views."""

import pytest
import torch

from .short_runs import finished


@pytest.mark.usefixtures("without_report")
def test_kept_views_are_reproducible_and_differ(tmp_path):
    first, metrics = finished(tmp_path / "a", "model.freeze=trunk", "model.views=4")
    again, same = finished(tmp_path / "b", "model.freeze=trunk", "model.views=4")
    plain, _ = finished(tmp_path / "c", "model.freeze=trunk")
    assert torch.equal(first["embedder"]["weight"], again["embedder"]["weight"])
    assert metrics["after"] == same["after"]
    assert not torch.equal(first["embedder"]["weight"], plain["embedder"]["weight"])

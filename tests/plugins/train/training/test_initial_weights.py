"""The weights that a run begins with."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.training import checkpoint
from pml_ext_train.training.state import model_state, start_from

from .built_runs import built


def test_weights_of_other_trunks_are_refused(tmp_path):
    run = built(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"model.init: .*none is not a finished run \(.*model.pt is missing\); give the folder"
    ):
        start_from(run, tmp_path / "none")
    wide = built(tmp_path / "wide", "model.trunk.width=16")
    checkpoint.save(wide.checkpoint("model"), model_state(wide))
    with pytest.raises(
        ConfigError, match=r"model.init: the trunk differs from that of .*wide .*trunk and the image size"
    ):
        start_from(run, tmp_path / "wide")

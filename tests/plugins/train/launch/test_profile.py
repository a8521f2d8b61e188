"""Times of training steps, by a clock that moves where a part takes its time."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.launch.profile import profile_recipe

from ....overrides import typed


def test_a_recipe_is_measured_in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["model.trunk.width=8", "sampler.iterations=3", "loss.memory.size=200", "loss.memory.start_epoch=2"]
    found = profile_recipe("cbml/digits", overrides=typed(quick), device="cpu", threads=1, steps=4, warm_up=1)
    assert found.steps == 4
    assert min(found.step, found.bare, found.ratio) > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="has 4 variants; wanted one of them"):
        profile_recipe("cbml/omniglot-small-mvc-weight")

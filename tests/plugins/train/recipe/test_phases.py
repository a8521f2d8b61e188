"""The phases whose metrics a run reports."""

import pytest

from pml_ext_train.recipe import (
    reported_phases,
    stage_before_whole,
)

from .recipes import one

LOSS = 'loss={name="cbml"}'


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        (f'{{epochs=2, freeze="trunk", {LOSS}}}', ("head", 2)),
        (f'{{epochs=2, freeze={{until="head"}}, {LOSS}}}', ("head", 2)),
        (f'{{epochs=2, freeze={{until="4"}}, {LOSS}}}', ("blocks", 2)),
        (f'{{epochs=2, freeze=["0"], {LOSS}}}', ("blocks", 2)),
        (f'{{epochs=2, freeze={{until="head"}}, {LOSS}}}, {{epochs=1, freeze={{until="4"}}, {LOSS}}}', ("blocks", 3)),
        (f'{{epochs=2, freeze="trunk", {LOSS}}}, {{epochs=1, {LOSS}}}', ("head", 2)),
        (f"{{epochs=2, {LOSS}}}", None),
    ],
)
def test_stages_before_the_whole_network_are_phases(tmp_path, stages, wanted):
    trunk = f'model.trunk={{name="convnet", blocks=2, width=8, weights="{tmp_path / "weights.pth"}"}}'
    recipe = one("cbml/digits", trunk, f"stages=[{stages}]")
    assert stage_before_whole(recipe) == wanted
    phases = {"head", "blocks"} & set(reported_phases(recipe))
    assert phases == (set() if wanted is None else {wanted[0]})
    random = one("cbml/digits", "model.trunk.weights=random", f"stages=[{stages}]")
    assert stage_before_whole(random) is None

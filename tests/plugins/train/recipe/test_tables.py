"""Tables of recipes: merged, flattened, and the origins of their settings."""

import pytest

from pml_ext_train.recipe import merged, overridden

from ....overrides import typed


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 3}}}, {"a": {"b": {"c": 3, "d": 2}}}),
        ({"a": "x"}, {"a": {"name": "x", "p": 1}}, {"a": {"name": "x", "p": 1}}),
        ({"a": "x"}, {"a": {"p": 1}}, {"a": {"name": "x", "p": 1}}),
        ({"freeze": "trunk"}, {"freeze": {"until": "b"}}, {"freeze": {"until": "b"}}),
        ({"freeze": {"until": "b"}}, {"freeze": "trunk"}, {"freeze": "trunk"}),
        ({"a": {"name": "x", "p": 1}}, {"a": "y"}, {"a": "y"}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        (
            {"data": {"name": "x", "size": 3, "workers": 2}},
            {"data": {"name": "y"}},
            {"data": {"name": "y", "workers": 2}},
        ),
    ],
)
def test_tables_are_merged_key_by_key(base, over, expected):
    before = repr(base)
    assert merged(base, over) == expected
    assert repr(base) == before


def test_a_setting_takes_its_inherited_origin_away():
    base = {"loss": {"a": 1, "b": 2}, "origin": {"loss.a": "paper", "loss.b": "paper", "optimizer": "program"}}
    over = {"loss": {"a": 3}, "origin": {"loss": "ours"}}
    assert merged(base, over)["origin"] == {"loss.b": "paper", "optimizer": "program", "loss": "ours"}
    assert merged(base, {"loss": {"a": 3}})["origin"] == base["origin"]  # a child without origins states none


@pytest.mark.parametrize(
    ("over", "left"),
    [
        ({"loss": {"name": "y"}}, {"losses": 1, "optimizer.lr": [0, 1]}),
        ({"loss": "y", "tune": {"loss.b": [3, 4]}}, {"losses": 1, "optimizer.lr": [0, 1], "loss.b": [3, 4]}),
        ({"tune": {"loss": "all"}}, {"losses": 1, "optimizer.lr": [0, 1], "loss": "all"}),
    ],
)
def test_ranges_of_a_replaced_table_are_dropped(over, left):
    base = {"loss": {"name": "x"}, "tune": {"loss.a": [1, 2], "losses": 1, "optimizer.lr": [0, 1]}}
    assert merged(base, over)["tune"] == left


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["sampler.m=4", "sampler={m=2, batch_size=32}"], {"name": "pml/m-per-class", "m": 2, "batch_size": 32}),
        (["sampler={m=2}", "sampler.m=4"], {"name": "pml/m-per-class", "m": 4, "batch_size": 120}),
        (["sampler.batch_size=64", "sampler={name='shuffle'}"], {"name": "shuffle", "batch_size": 64}),
        (["sampler={name='shuffle', batch_size=32}", "sampler.name=tree"], {"name": "tree"}),
        (["sampler.batch_size=64", "sampler={name='shuffle', batch_size=32}"], {"name": "shuffle", "batch_size": 32}),
    ],
)
def test_the_last_value_of_a_key_wins(tmp_path, overrides, wanted):
    tables = {"sampler": {"name": "pml/m-per-class", "m": 8, "batch_size": 120}}
    settings = [(override.key, override.value) for override in typed(overrides)]
    assert overridden(tables, settings) == {"sampler": wanted}


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (
            [("model.trunk.width", 8), ("model", {"trunk": {"name": "mlp"}, "embedding_size": 4})],
            {"trunk": {"name": "mlp", "width": 8}, "embedding_size": 4},
        ),
        (
            [("model", {"trunk": {"name": "mlp", "width": 8}}), ("model.trunk", "convnet")],
            {"trunk": {"name": "convnet"}},
        ),
    ],
)
def test_names_inside_of_tables_go_first(settings, model):
    tables = {"model": {"trunk": "convnet"}, "origin": {"loss.name": "paper"}}
    found = overridden(tables, [*settings, ("origin", {"loss.name": "ours"})])
    assert found == {"model": model, "origin": {"loss.name": "ours"}}


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["loss.optimizer={name='sgd', lr=1}", "loss.name=b"],
            {"name": "b", "optimizer": {"name": "sgd", "lr": 1}},
        ),
        (["loss={miner='m', name='b'}"], {"name": "b", "miner": "m"}),
        (
            ["loss.miner={name='m', k=2}", "loss={name='b'}"],
            {"name": "b", "miner": {"name": "m", "k": 2}},
        ),
        (["loss.miner=m", "loss.name=b"], {"name": "b", "miner": "m"}),
    ],
)
def test_names_of_parts_hold_whatever_the_order(overrides, wanted):
    settings = [(override.key, override.value) for override in typed(overrides)]
    for given in (settings, settings[::-1]):
        assert overridden({"loss": {"name": "a", "margin": 0.1}}, given) == {"loss": wanted}

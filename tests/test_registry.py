"""Look-up by name: clashes, names that are not there, classes of the running process."""

import pytest
from pytorch_metric_learning import losses, miners

import pml_ext
from pml_ext import registry
from pml_ext.errors import PluginError, UnknownNameError
from pml_ext.registry import Registry


def test_two_plugins_that_claim_one_name_stay_reachable_by_their_own(install_loss):
    install_loss("first", "One", "same")
    install_loss("second", "Two", "same")
    found = Registry()
    with pytest.raises(PluginError, match=r"'first:same' \(first 1.0\) and 'second:same' \(second 1.0\)"):
        found.get("same")
    assert found.get("first:same").cls.__name__ == "OneLoss"
    assert found.get("second:same").cls.__name__ == "TwoLoss"


def test_two_classes_of_one_name_are_refused_by_that_name(install_loss):
    install_loss("first", "Same", "one")
    install_loss("second", "Same", "two")
    with pytest.raises(PluginError, match="first:one.*second:two"):
        Registry().class_by_name("SameLoss")


def test_unknown_names_say_the_nearest():
    with pytest.raises(UnknownNameError, match="no loss 'cbmll'; nearest: cbml"):
        registry.get("cbmll", kind="loss")
    with pytest.raises(UnknownNameError, match="pml/multi-similarity"):
        registry.get("multi-similarity")
    with pytest.raises(UnknownNameError, match="kinds are loss, miner"):
        registry.components("losses")
    with pytest.raises(UnknownNameError, match="no data set 'digit'; nearest: digits"):
        registry.dataset("digit")
    with pytest.raises(AttributeError, match="CBMLLoss"):
        pml_ext.CBMLoss  # noqa: B018
    assert not hasattr(pml_ext, "NoSuchThing")


def test_a_name_that_two_kinds_share_needs_the_kind():
    with pytest.raises(UnknownNameError, match="a loss and a miner"):
        registry.get("pml/angular")
    assert registry.get("pml/angular", kind="miner").cls is miners.AngularMiner


def test_register_in_the_running_process_and_again():
    try:
        for margin in (1, 2):

            @pml_ext.register(name="scratch")
            class ScratchLoss(losses.ContrastiveLoss):
                """From a notebook."""

                version = margin

        assert registry.get("scratch").cls.version == 2
        assert pml_ext.ScratchLoss is ScratchLoss
        assert "ScratchLoss" in dir(pml_ext)

        @pml_ext.register
        class HomeMadeMiner(miners.BatchHardMiner):
            pass

        assert registry.get("home-made").kind == "miner"
        with pytest.raises(TypeError, match="extends none"):
            pml_ext.register(int, name="number")
    finally:
        registry.unregister_local()


def test_two_data_sets_of_one_name_stay_reachable_by_their_own(install_loss):
    for number, module in enumerate(("first", "second")):
        install_loss(
            module,
            module.title(),
            module,
            more=f"""
    @hookimpl
    def pml_ext_datasets():
        return {{"twice": lambda root: {number}}}
    """,
        )
    registry = Registry()
    with pytest.raises(PluginError, match=r"'first:twice' \(first 1.0\) and 'second:twice' \(second 1.0\)"):
        registry.dataset("twice")
    assert [registry.dataset(f"{module}:twice")(None) for module in ("first", "second")] == [0, 1]
    assert {"first:twice", "second:twice"} <= set(registry.datasets())
    assert "twice" not in registry.datasets()

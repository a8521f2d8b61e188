"""The plugin as a part of the program, found by its entry point."""

from pml_ext import registry


def test_the_command_and_its_recipes_are_found():
    plugin, _ = registry.commands()["fit"]
    assert plugin == "fit"
    names = {name for name in registry.recipes() if name.startswith("fit/")}
    photographs = {f"fit/photographs{kind}" for kind in ("", "-pretrained", "-fine-tuned")}
    assert names == photographs | {"fit/vectors", "fit/unlabeled", "fit/unlabeled-vectors"}

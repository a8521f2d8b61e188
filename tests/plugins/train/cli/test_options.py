"""Options that several commands have: everywhere the same names, values and help."""

import typing

import pytest

from pml_ext import registry
from pml_ext_train.cli import options

SHARED = {
    "RunFolder": "run",
    "DataFolder": "data",
    "OnDevice": "device",
    "AsJson": "as_json",
    "Verbose": "verbose",
    "Overrides": "overrides",
    "Workers": "workers",
    "StoreFolder": "store",
    "RayAddress": "ray_address",
}


def commands():
    """``{name: {parameter: annotation}}`` of every command."""
    found = {}
    for name, (_, command) in registry.commands().items():
        found[name] = typing.get_type_hints(command.load(), include_extras=True)
    return found


@pytest.mark.parametrize(("option", "parameter"), SHARED.items())
def test_commands_share_name_and_help_of_an_option(option, parameter):
    annotation = getattr(options, option)
    own = {name: hints[parameter] for name, hints in commands().items() if parameter in hints}
    assert own, option
    same_text = {name for name, hint in own.items() if hint == annotation}
    assert same_text, option
    kind = type(annotation.__metadata__[0])  # bench has an option of a recipe where others have an argument
    alike = [hint.__metadata__[0] for hint in own.values() if isinstance(hint.__metadata__[0], kind)]
    assert len({each.param_decls for each in alike}) == 1, option


def test_an_unknown_device_is_refused(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "x", "--device", "gpu")
    assert done.returncode == 2
    assert "'--device': 'gpu' is not one of 'auto', 'cpu', 'cuda', 'mps', 'xpu'" in " ".join(done.stderr.split())
    assert not (tmp_path / "x").exists()

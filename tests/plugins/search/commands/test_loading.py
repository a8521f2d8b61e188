"""What commands load: a run, and a file of paths."""

import os

import pytest

from pml_ext.errors import ConfigError
from pml_ext_search.commands.loading import read_list


def test_a_list_has_a_path_in_each_line(tmp_path):
    names = ["a.png", "sub folder/b.png", os.fsdecode(b"caf\xe9.png")]
    (tmp_path / "list").write_bytes(os.fsencode("\n".join(names)) + b"\n\n")
    assert read_list(tmp_path / "list") == names
    with pytest.raises(ConfigError, match="--list .*none: cannot be read .No such file or directory"):
        read_list(tmp_path / "none")

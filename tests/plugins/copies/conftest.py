"""The command line, an index and blocked plugins, as in the tests of search."""

from ..search.conftest import block, command, few, make

__all__ = ["block", "command", "few", "make"]

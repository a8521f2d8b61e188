"""The command line ``pml-ext``, with one function per command.

Results go to stdout, progress and warnings to stderr. Exit code 0: done; 1: a finding or a failure; 2: wrong use.
"""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "the command line")

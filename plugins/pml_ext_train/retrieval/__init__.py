"""What tools that search hand to one another: data that none of them owns, and the services that they offer.

A tool imports no other. It asks for one by name, :func:`pml_ext.registry.service`, and gets an object with the methods
that are written here.
"""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "retrieval")

"""Losses, miners and batch norm over several processes, and communication between them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Start and end of data-loader workers: by a fork server on Linux, elsewhere by spawn.

Forking the run would copy its threads' locks. What a worker reads must be picklable.
"""

import atexit
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import signal
import sys
import weakref
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from .signals import ENDING

# This module is the first, since importing it protects the server from signals.
_PRELOADED = [__name__, "pml_ext_train.training.loader", "torchvision.transforms.v2"]

STARTED: weakref.WeakSet[BaseProcess] = weakref.WeakSet()  # workers that this process has started


def worker_context() -> BaseContext:
    """Return the context of workers; start the fork server if needed."""
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        try:
            multiprocessing.forkserver.ensure_running()
            return context
        except ChildProcessError:  # this process was forked, and the server is that of its parent
            pass
    return multiprocessing.get_context("spawn")


@atexit.register
def _end_workers() -> None:
    """Kill workers at exit: they ignore multiprocessing's one SIGTERM."""
    left = [child for child in multiprocessing.active_children() if child in STARTED]
    if left and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises errors about workers that end
    for child in left:
        child.kill()


def _ignore_signals() -> None:
    """Ignore signals that a scheduler sends to every process; the run ends its workers."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}

    def restore(_: object) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    multiprocessing.util.register_after_fork(worker_context, restore)  # in a worker, before its own work


if getattr(sys.modules["__main__"], "main", None) is multiprocessing.forkserver.main:
    _ignore_signals()

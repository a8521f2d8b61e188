"""Python calls of functions in pml_ext and its plugins: a step of a loss, a query, a run up to the first equation.

    python benchmarks/calls.py loss                   # CBMLLoss()(embeddings, labels).backward() at 32 x 64
    python benchmarks/calls.py train                  # cbml/digits
    python benchmarks/calls.py query RUN IMAGE
    python benchmarks/calls.py COMMAND ... --top 20   # the functions that are called most

The calls of other packages are not counted.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (str(ROOT / "pml_ext"), str(ROOT / "plugins"))


class FirstEquation(BaseException):
    """Raised at the first call of a loss's equation."""


class Calls:
    """The number of calls of each function of ours inside a ``with`` block, in all threads that Python starts."""

    def __init__(self, until: str = "") -> None:
        self._until = until
        self.counts: collections.Counter[CodeType] = collections.Counter()

    def __enter__(self) -> Calls:
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDERS):
            return
        self.counts[code] += 1
        if code.co_name == self._until:
            sys.setprofile(None)
            raise FirstEquation

    def show(self, top: int) -> None:
        """Print the number of calls and files, and the functions that are called most."""
        files = {code.co_filename for code in self.counts}
        print(f"{self.counts.total()} calls in {len(files)} files")
        for code, count in self.counts.most_common(top):
            file = Path(code.co_filename).relative_to(ROOT)
            print(f"{count:7d}  {code.co_qualname}  {file}:{code.co_firstlineno}")


def count_loss() -> Calls:
    """Count a whole step of CBMLLoss, forward and backward; another was built and called before."""
    import torch

    from pml_ext import CBMLLoss

    embeddings = torch.randn(32, 64, requires_grad=True)
    labels = torch.arange(32) // 4
    CBMLLoss()(embeddings, labels).backward()
    loss = CBMLLoss()
    calls = Calls()
    with calls:
        loss(embeddings, labels).backward()
    return calls


def count_command(*arguments: str, until: str = "") -> Calls:
    """Count a command of pml-ext in this process, imports included."""
    calls = Calls(until)
    sys.argv = ["pml-ext", *arguments]
    with contextlib.suppress(SystemExit, FirstEquation), calls:
        from pml_ext_train.cli import main

        main()
    return calls


def main() -> None:
    """Count what the arguments say."""
    arguments = sys.argv[1:]
    top = 0
    if "--top" in arguments:
        place = arguments.index("--top")
        top = int(arguments[place + 1])
        del arguments[place : place + 2]
    if not arguments:
        raise SystemExit(__doc__)
    what, *rest = arguments
    if what == "loss":
        calls = count_loss()
    elif what == "train":
        with tempfile.TemporaryDirectory() as folder:
            calls = count_command("train", "cbml/digits", "--out", f"{folder}/run", "--device", "cpu", until="equation")
    else:
        calls = count_command(what, *rest)
    calls.show(top)


if __name__ == "__main__":
    main()

"""Embedding and training of whole networks on a CPU, by torch's defaults and with speed-ups.

Kept memory, channels-last and fused AdamW are added in turn; then, each alone, bfloat16 (autocast) and
``torch.compile``.

``python -m benchmarks.whole_networks --rounds 3`` prints medians of CPU milliseconds per image, and images per second.
``--trunks`` names trunks of torchvision or timm, or ``efficientnet-lite0`` (extra ``photos``); ``--threads`` sets
torch's threads.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time


@dataclasses.dataclass(frozen=True)
class Kind:
    kept: bool = False  # freed memory
    channels_last: bool = False
    fused: bool = False
    bfloat16: bool = False
    compiled: bool = False


KINDS = {
    "torch's defaults": Kind(),
    "freed memory kept": Kind(kept=True),
    "and channels-last": Kind(kept=True, channels_last=True),
    "and fused AdamW": Kind(kept=True, channels_last=True, fused=True),
    "and bfloat16": Kind(kept=True, channels_last=True, fused=True, bfloat16=True),
    "and torch.compile": Kind(kept=True, channels_last=True, fused=True, compiled=True),
}
TRUNKS = ("efficientnet-lite0", "torchvision/resnet18", "torchvision/vit_b_16", "convnet")
WARM_UP = 1  # batches


def measure(trunk: str, size: int, batch: int, batches: int, threads: int, kind: Kind) -> dict[str, float]:
    """CPU milliseconds per image, and images per second, of embedding and training."""
    import torch

    from pml_ext import keep_freed_memory
    from pml_ext_train.recipe.build import build_trunk
    from pml_ext_train.recipe.schema import NamedTable

    if threads:
        torch.set_num_threads(threads)
    if kind.kept:
        keep_freed_memory("cpu")
    torch.manual_seed(0)
    network = build_trunk(NamedTable(name=trunk), 3, size)
    images = torch.randn(batch, 3, size, size)
    if kind.channels_last:
        network.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=kind.fused)
    called = torch.compile(network) if kind.compiled else network

    def features() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind.bfloat16):
            result: torch.Tensor = called(images)
        return result.float()

    def embed() -> None:
        network.eval()
        with torch.no_grad():
            features()

    def train() -> None:
        network.train()
        optimizer.zero_grad()
        features().square().mean().backward()
        optimizer.step()

    found = {}
    for name, step in (("embed", embed), ("train", train)):
        for _ in range(WARM_UP):
            step()
        started = time.perf_counter()
        cpu_started = time.process_time()
        for _ in range(batches):
            step()
        count = batches * batch
        found[f"{name}, CPU ms"] = 1000 * (time.process_time() - cpu_started) / count
        found[f"{name}, images/s"] = count / (time.perf_counter() - started)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--trunks", nargs="+", default=list(TRUNKS))
    options.add_argument("--size", type=int, default=160, help="pixels")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--batches", type=int, default=3)
    options.add_argument("--threads", type=int, default=0, help="torch's (default: its own choice)")
    options.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    options.add_argument("--one", choices=list(KINDS), help=argparse.SUPPRESS)  # the measurement of a child
    given = options.parse_args()
    if given.one is not None:
        (trunk,) = given.trunks
        kind = KINDS[given.one]
        print(json.dumps(measure(trunk, given.size, given.batch, given.batches, given.threads, kind)))
        return

    clean = {name: value for name, value in os.environ.items() if name != "PML_EXT_ALLOCATOR"}
    for trunk in given.trunks:
        command = [sys.executable, "-m", "benchmarks.whole_networks", "--trunks", trunk]
        for name in ("size", "batch", "batches", "threads"):
            command += [f"--{name}", str(getattr(given, name))]
        results: dict[str, list[dict[str, float]]] = {kind: [] for kind in given.kinds}
        for _ in range(given.rounds):
            for kind, measured in results.items():
                done = subprocess.run([*command, "--one", kind], env=clean, check=True, capture_output=True, text=True)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{trunk}, {given.size} pixels, batches of {given.batch}")
        for kind, measured in results.items():
            medians = []
            for name in measured[0]:
                median = statistics.median(result[name] for result in measured)
                medians.append(f"{name} {median:.1f}")
            print(f"  {kind}: {', '.join(medians)}", flush=True)


if __name__ == "__main__":
    main()

"""Time and memory of a network on a CPU, with and without keeping freed memory.

``python -m benchmarks.allocator --rounds 5`` prints medians. Each measurement is a separate process; both kinds take
turns. Only Linux with glibc shows a difference.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

SIZE = 160  # height and width of the images, in pixels
BATCH = 64


def measure(kept: bool, training: bool, batches: int) -> dict[str, float]:
    """Images per second, system seconds and peak MiB of ResNet-18 in this process."""
    import torch
    import torchvision

    from pml_ext import keep_freed_memory

    if kept and not keep_freed_memory():
        raise SystemExit("this process has no allocator of glibc's to set")
    network = torchvision.models.resnet18().train(training)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        if training:
            network(images).square().mean().backward()
            return
        with torch.no_grad():
            network(images)

    step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    for _ in range(batches):
        step()
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "images a second": batches * BATCH / seconds,
        "system seconds": after.ru_stime - before.ru_stime,
        "peak MiB": after.ru_maxrss / 1024,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--batches", type=int, default=8, help=f"of {BATCH} images")
    options.add_argument("--one", choices=["default", "kept"], help=argparse.SUPPRESS)  # the measurement of a child
    options.add_argument("--training", action="store_true", help="forward and backward pass; by default forward alone")
    given = options.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given.one == "kept", given.training, given.batches)))
        return

    measured: dict[str, list[dict[str, float]]] = {"default": [], "kept": []}
    clean = {name: value for name, value in os.environ.items() if name != "PML_EXT_ALLOCATOR"}
    command = [sys.executable, "-m", "benchmarks.allocator", "--batches", str(given.batches)]
    if given.training:
        command.append("--training")
    for _ in range(given.rounds):
        for kind, results in measured.items():
            done = subprocess.run([*command, "--one", kind], env=clean, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    for kind, results in measured.items():
        medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
        print(f"{kind}: " + ", ".join(f"{name} {value:.1f}" for name, value in medians.items()))


if __name__ == "__main__":
    main()

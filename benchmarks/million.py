"""A query among many made-up embeddings, from the shell and from Python: seconds and memory.

``python -m benchmarks.million [--images 1000000] [--size 64]`` compares with importing torch and with faiss alone.
Building an HNSW graph of a million takes a quarter of an hour; ``--kinds exact ivf`` leaves it out.
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FACTORIES = {"exact": "exact", "ivf": "", "hnsw": "HNSW32"}  # "" is the rule's, IVF beyond 200,000 images
OVERRIDES = {"schedule.epochs": 3, "schedule.milestones": [2], "sampler.iterations": 8, "model.trunk.width": 16}
CLASSES = 1000


def made_up_run(place: Path, size: int) -> Path:
    from pml_ext_train.launch.launch import train
    from pml_ext_train.results import finish as results

    real = results.write_run_report
    results.write_run_report = lambda *_: None
    try:
        overrides = OVERRIDES | {"model.embedding_size": size}
        train("triplets/digits", out=place / "run", overrides=overrides, device="cpu")
    finally:
        results.write_run_report = real
    return place / "run"


def made_up_images(folder: Path, images: int, size: int, classes: int = CLASSES) -> Any:
    import torch

    from pml_ext_search.collection.embedded import Embedded

    generator = torch.Generator().manual_seed(0)
    centers = torch.nn.functional.normalize(torch.randn(classes, size, generator=generator))
    points = torch.randn(images, size, generator=generator).div_(size**0.5)
    for start in range(0, images, 1 << 16):
        points[start : start + (1 << 16)] += centers[torch.arange(start, min(images, start + (1 << 16))) % classes]
    paths = [f"class {number % classes:03d}/{number:08d}.jpg" for number in range(images)]
    return Embedded(folder, paths, torch.nn.functional.normalize(points, out=points), {})


def write_index(collection: Any, embedded: Any, factory: str) -> None:
    count = len(embedded.paths)
    paths = [os.fsencode(embedded.folder / path) for path in embedded.paths]
    collection.create(replace=True)
    written = collection.append(paths, [(1, 1)] * count, embedded.embeddings.numpy())
    stats = np.ones((count, 2), dtype=np.int64)
    numbers = np.array([*written.values()])
    collection.write_index(dataclasses.replace(embedded, stats=stats, numbers=numbers), factory)


def write_query(place: Path) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "query.png")
    return place / "query.png"


def measured(arguments: Sequence[str]) -> tuple[float, float, float]:
    """Seconds of a process by the clock and of CPU, and its peak memory in bytes."""
    script = (
        "import resource, subprocess, sys, time; begun = time.perf_counter(); "
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); clock = time.perf_counter() - begun; "
        "print(clock, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, done.returncode)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    seconds, processors, memory, code = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"{arguments} ended with {code}")
    return float(seconds), float(processors), float(memory)


def forget(place: Path) -> None:
    """Ask the system to drop cached files of a folder from memory."""
    for path in place.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_the_shell(run: Path, place: Path, query: Path, turns: int) -> dict[str, float]:
    """Seconds and bytes of ``pml-ext query``, and of its imports."""
    torch_alone = [sys.executable, "-c", "import torch"]
    command = [sys.executable, "-m", "pml_ext", "query", str(run), str(query), "--store", str(place), "--json"]
    importing = [
        sys.executable,
        "-c",
        f"import faiss, sqlite3; from pml_ext import load_run; load_run({str(run)!r})",
    ]
    forget(place)
    cold = measured(command)[0]
    rows = [(measured(torch_alone), measured(command), measured(importing)) for _ in range(turns)]
    middle = lambda which, what: statistics.median(row[which][what] for row in rows)  # noqa: E731
    return {
        "torch": middle(0, 0),
        "cold": cold,
        "warm": middle(1, 0),
        "above": middle(1, 0) - middle(0, 0),
        "processors": middle(1, 1) - middle(0, 1),
        "memory": middle(1, 2) - middle(2, 2),
    }


def from_python(run: Path, place: Path, query: Path, turns: int) -> dict[str, float]:
    """Seconds of the first query, of later ones, of embedding the image, and of faiss alone."""
    import faiss

    from pml_ext import load_run

    loaded = load_run(run, "cpu", store=place)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded.query(query, 8)
        first = time.perf_counter() - begun
        held = loaded.gallery()
        if held.faiss is None:
            plain: Any = faiss.IndexFlatL2(held.embedded.embeddings.shape[1])
            plain.add(held.embedded.embeddings.numpy())
        else:
            plain = faiss.read_index(str(next(held.place.glob("*.faiss"))))
            faiss.ParameterSpace().set_index_parameter(plain, held.faiss.setting, held.faiss.effort)
        ours = []
        theirs = []
        for _ in range(turns):
            ours.append(seconds_of(lambda: loaded.query(query, 8)))
            theirs.append(seconds_of(lambda: plain.search(loaded.embed(query).numpy(), 9)))
    return {"first": first, "second": statistics.median(ours), "faiss": statistics.median(theirs)}


def seconds_of(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", choices=FACTORIES, default=[*FACTORIES])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="keep what is made, and use it again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = given.out or Path(temporary)
        place.mkdir(exist_ok=True)
        run = place / "run" if (place / "run" / "network.json").exists() else made_up_run(place, given.size)
        query = write_query(place)
        embedded = None
        bytes_of_all = given.images * given.size * 4
        print(f"{given.images:,} x {given.size}, {bytes_of_all / 1e6:.0f} MB of embeddings")
        for kind in given.kinds:
            index = place / f"index-{kind}-{given.images}"
            if not (index / "images.sqlite").exists():
                from pml_ext import load_run

                embedded = embedded or made_up_images(place / "photos", given.images, given.size)
                begun = time.perf_counter()
                write_index(load_run(run, "cpu", store=index).collection, embedded, FACTORIES[kind])
                print(f"{kind}: built in {time.perf_counter() - begun:.0f} s", flush=True)
            from pml_ext import load_run

            faiss = load_run(run, "cpu", store=index).gallery().faiss
            effort, recall = (faiss.effort, faiss.recall) if faiss is not None else (None, 1)
            print(f"{kind}: {faiss.factory if faiss else 'exact'}, effort {effort}, recall@10 {recall:.3f}")
            shell = from_the_shell(run, index, query, given.turns)
            print(
                f"  shell: import torch {shell['torch']:.2f} s; query {shell['warm']:.2f} s, {shell['above']:.2f} s "
                f"above it ({shell['processors']:.2f} of processors); the first time {shell['cold']:.2f} s; "
                f"memory above importing {shell['memory'] / bytes_of_all:.2f} x the embeddings"
            )
            python = from_python(run, index, query, 100)
            print(
                f"  Python: first query {1e3 * python['first']:.1f} ms, further ones "
                f"{1e3 * python['second']:.1f} ms; embedding and faiss alone {1e3 * python['faiss']:.1f} ms: "
                f"{python['second'] / python['faiss']:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()

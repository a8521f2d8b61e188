"""Indexing a large file of vectors and queries by id, compared with a bare loop and faiss.

``python -m benchmarks.vectors [--vectors 1000000] [--size 384]`` (up to ten minutes) trains a head on 2,000 made-up
vectors, and indexes all. The bare loop reads the file, writes normalized embeddings, and builds the same faiss index. A
query by id, and a thousand vectors at once, are compared with faiss alone.
"""

import argparse
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

CLASSES = 1000
TRAINED = 2_000  # vectors
BLOCK = 1 << 15
OVERRIDES = {
    "schedule.epochs": 1,
    "sampler.iterations": 10,
    "evaluation.baselines": False,
    "model.embedding_size": 128,
}


def made_up_vectors(place: Path, count: int, size: int) -> Path:
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((CLASSES, size), dtype=np.float32)
    labels = np.arange(count) % CLASSES
    rows = np.empty((count, size), dtype=np.float32)
    for start in range(0, count, BLOCK):
        some = labels[start : start + BLOCK]
        rows[start : start + BLOCK] = centers[some] + generator.standard_normal((len(some), size), dtype=np.float32)
    names = np.char.add("item-", np.arange(count).astype(str))
    np.savez(place / "all.npz", embeddings=rows, labels=labels, ids=names)
    few = labels < 20
    chosen = np.flatnonzero(few)[:TRAINED]
    np.savez(place / "few.npz", embeddings=rows[chosen], labels=labels[chosen])
    return place / "all.npz"


def trained_run(place: Path) -> Path:
    from pml_ext_train.launch.launch import train
    from pml_ext_train.results import finish as results

    real = results.write_run_report
    results.write_run_report = lambda *_: None
    settings = {"data.name": f"vectors:{place / 'few.npz'}", "sampler.batch_size": 40, **OVERRIDES}
    try:
        train("fit/vectors", out=place / "run", overrides=settings, device="cpu")
    finally:
        results.write_run_report = real
    return place / "run"


def bare_loop(head: torch.nn.Module, file: Path, place: Path, factory: str) -> None:
    import faiss

    from pml_ext_search.collection.faiss_index import FaissIndex

    with np.load(file) as archive:
        rows = torch.from_numpy(archive["embeddings"])
    with torch.no_grad():
        blocks = [torch.nn.functional.normalize(head(block)) for block in torch.split(rows, BLOCK)]
    points = torch.cat(blocks)
    points.numpy().tofile(place / "bare.f32")
    built = FaissIndex.build(factory, points)
    faiss.write_index(built.index, str(place / "bare.faiss"))


def seconds_of(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def both_seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call by the clock and of CPU."""
    begun = time.process_time()
    clock = seconds_of(call)
    return clock, time.process_time() - begun


def query_seconds(gallery: Any, loaded: Any, turns: int) -> tuple[float, float]:
    """Seconds of a query by id, and of faiss alone with that vector, in turns."""
    points = gallery.embedded.embeddings
    ours = []
    theirs = []
    for turn in range(turns):
        row = turn * len(gallery) // turns
        name = gallery.embedded.paths[row]
        vector = points[row : row + 1]
        theirs.append(seconds_of(lambda vector=vector: gallery.faiss.search(vector, 9)))
        ours.append(seconds_of(lambda name=name: loaded.query([name], 8)))
    return statistics.median(ours), statistics.median(theirs)


def batch_seconds(gallery: Any, loaded: Any, vectors: Any) -> tuple[float, float]:
    """CPU seconds of many queries at once, and of the head, faiss and a list of ids alone."""
    names = gallery.embedded.paths

    def bare() -> list[list[str]]:
        with torch.no_grad():
            points = torch.nn.functional.normalize(loaded.network(torch.from_numpy(vectors)))
        _, numbers = gallery.faiss.search(points, 8)
        return [[names[number] for number in row] for row in numbers.tolist()]

    ours = []
    theirs = []
    for _ in range(5):
        theirs.append(both_seconds(bare)[1])
        ours.append(both_seconds(lambda: loaded.query(vectors, 8))[1])
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=1, help="of index and bare loop, which take turns")
    parser.add_argument("--turns", type=int, default=100, help="queries")
    given = parser.parse_args()
    from pml_ext import load_run
    from pml_ext_search.collection.faiss_index import chosen_factory

    warnings.simplefilter("ignore")
    factory = chosen_factory("", given.vectors) or "IVF64,Flat"
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        file = made_up_vectors(place, given.vectors, given.size)
        run = trained_run(place)
        ours = []
        bare = []
        for number in range(given.rounds):
            loaded = load_run(run, "cpu", store=place / f"store-{number}")
            head = loaded.network
            bare.append(both_seconds(lambda head=head: bare_loop(head, file, place, factory)))
            ours.append(both_seconds(lambda loaded=loaded: loaded.index(file, factory)))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        gallery = loaded.gallery()
        print(f"{given.vectors:,} x {given.size}, {factory}, nprobe {gallery.faiss.effort}")
        for which, name in enumerate(("by the clock", "of processors")):
            mine = statistics.median(seconds[which] for seconds in ours)
            theirs = statistics.median(seconds[which] for seconds in bare)
            print(f"index, {name}: {mine:.1f} s, bare loop {theirs:.1f} s: {mine / theirs:.2f} x")
        print(f"memory: {memory:.1f} GiB at most")
        query, alone = query_seconds(gallery, loaded, given.turns)
        print(
            f"query by id: {1e3 * query:.2f} ms, faiss alone {1e3 * alone:.2f} ms: {1e3 * (query - alone):.2f} ms more"
        )
        some = np.load(file)["embeddings"][:: max(1, given.vectors // 1000)] + np.float32(0.1)
        mine, theirs = batch_seconds(gallery, loaded, some)
        print(
            f"{len(some):,} vectors queried at once: {mine:.2f} s of processors, head, faiss and ids alone "
            f"{theirs:.2f} s: {mine / theirs:.2f} x"
        )


if __name__ == "__main__":
    main()

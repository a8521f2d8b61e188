"""Write, search, filter, change and delete in each vector store.

``python -m benchmarks.stores [--images 200000] [--classes 1000]`` copies an index of made-up embeddings to LanceDB, to
PostgreSQL with pgvector, and to Qdrant. It prints seconds, recall@10 against exact search, and the rate of single
queries, with and without a class, beside our own index. Then 1,000 images change and 1,000 are deleted. PostgreSQL is
stopped during a write, which is then repeated.
"""

import argparse
import dataclasses
import os
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.evaluation import default_neighbors
from pml_ext.plugin import SearchFilter
from pml_ext_search.query.gallery import Gallery
from pml_ext_stores.mirror import MirroredStore

from . import postgresql
from .million import made_up_images, made_up_run, write_index

CHANGED = 1000  # images
QUERIES = 200
CLASS = "class 001"  # the one that is searched alone


def new_queries(images: int, size: int, classes: int) -> torch.Tensor:
    points = made_up_images(Path("/photos"), images, size, classes).embeddings[:QUERIES]
    noise = torch.randn(points.shape, generator=torch.Generator().manual_seed(7)).mul_(0.5 * size**-0.5)
    return torch.nn.functional.normalize(points + noise)


def per_second(search: object, queries: torch.Tensor) -> float:
    """Single queries per second, after ten that warm up."""
    for query in queries[:10]:
        search(query[None])
    before = time.perf_counter()
    for query in queries:
        search(query[None])
    return len(queries) / (time.perf_counter() - before)


def measured(name: str, store: MirroredStore, gallery: Gallery, queries: torch.Tensor, first: float) -> None:
    embedded = gallery.embedded
    within = SearchFilter(CLASS)
    everything = SearchFilter()
    plain = per_second(lambda points: store.search(points.numpy(), 10, everything), queries)
    filtered = per_second(lambda points: store.search(points.numpy(), 10, within), queries)
    answers = store.search(queries.numpy(), 10, within)
    rows = torch.tensor([number for number, each in enumerate(embedded.classes) if each == CLASS])
    exact = rows[default_neighbors().search(queries, 10, embedded.embeddings[rows])[1]].numpy()
    found = np.mean(
        [
            len({each.id for each in row} & {*embedded.ids[want].tolist()}) / 10
            for row, want in zip(answers, exact, strict=True)
        ]
    )
    recall = store.recall_at_10(embedded)
    print(
        f"{name}: written in {first:.0f} s, {store.count():,} images, recall@10 {recall:.3f}, {plain:.0f} queries/s; "
        f"of one class: recall@10 {found:.3f}, {filtered:.0f} queries/s",
        flush=True,
    )
    changes = dataclasses.replace(
        embedded, stats=embedded.stats.copy(), ids=embedded.ids[:-CHANGED], paths=embedded.paths[:-CHANGED]
    )
    changes = dataclasses.replace(
        changes, stats=changes.stats[:-CHANGED], embeddings=embedded.embeddings[:-CHANGED].clone()
    )
    changes.stats[:CHANGED] = 2
    changes.embeddings[:CHANGED] = embedded.embeddings[-CHANGED:]
    before = time.perf_counter()
    told = store.update(changes)
    taken = time.perf_counter() - before
    again = store.update(changes)
    recall = store.recall_at_10(changes)
    print(f"{name}: {told}, in {taken:.1f} s; then {again}; recall@10 {recall:.3f}", flush=True)


def stopped_in_the_middle(server: postgresql.Server, run: object, gallery: Gallery) -> None:
    """Stop the server during a write, and write again."""
    store = run.open_store(f"pgvector:{server.address}")

    done = threading.Event()

    def stop() -> None:
        while not done.is_set() and run.open_store(f"pgvector:{server.address}").count() < len(gallery) // 5:
            time.sleep(0.05)
        server.stop()

    watcher = threading.Thread(target=stop)
    watcher.start()
    try:
        store.update(gallery.embedded)
        print("pgvector: written before the server stopped")
    except DataError as error:
        print(f"pgvector, stopped: {error}")
    done.set()
    watcher.join()
    server.start()
    store = run.open_store(f"pgvector:{server.address}")
    print(f"pgvector, started again: {store.update(gallery.embedded)}; {store.count():,} images", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--stores", nargs="+", default=["lancedb", "pgvector", "qdrant"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        run = load_run(made_up_run(Path(folder), options.size), "cpu", store=Path(folder) / "own")
        run.collection.create(replace=True)
        images = made_up_images(Path("/photos"), options.images, options.size, options.classes)
        queries = new_queries(options.images, options.size, options.classes)
        for kind, factory in (("exact", "exact"), ("IVF", f"IVF{int(options.images**0.5)},Flat")):
            write_index(run.collection, images, factory)
            gallery = Gallery(run.collection, torch.device("cpu"))
            plain = per_second(
                lambda points, gallery=gallery: gallery.answer([""], points, 10, SearchFilter()), queries
            )
            filtered = per_second(
                lambda points, gallery=gallery: gallery.answer([""], points, 10, SearchFilter(CLASS)), queries
            )
            recall = gallery.faiss.recall if gallery.faiss is not None else 1.0
            print(
                f"our own index, {kind}: recall@10 {recall:.3f}, {plain:.0f} queries/s; "
                f"of one class {filtered:.0f} queries/s",
                flush=True,
            )
        for name in options.stores:
            if name == "pgvector":
                with postgresql.running() as server:
                    address = f"pgvector:{server.address}"
                    before = time.perf_counter()
                    store = run.open_store(address)
                    store.update(gallery.embedded)
                    measured(name, store, gallery, queries, time.perf_counter() - before)
                with postgresql.running() as server:
                    stopped_in_the_middle(server, run, gallery)
                continue
            store = run.open_store(f"{name}:{Path(folder) / name}")
            before = time.perf_counter()
            store.update(gallery.embedded)
            measured(name, store, gallery, queries, time.perf_counter() - before)


if __name__ == "__main__":
    main()

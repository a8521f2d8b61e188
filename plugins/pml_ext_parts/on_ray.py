"""Embedding with Ray Data; the calling process writes the files."""

import io
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pml_ext.distributed import threads_for
from pml_ext.errors import DataError, needs_extra, one_line
from pml_ext_train.files import write_atomically
from pml_ext_train.retrieval import FileEmbedder, RayWorkers

from .segments import Work
from .tables import META
from .writing import pending, tables

with needs_extra("ray", "--on ray"):
    import pyarrow.parquet as parquet


class Embedder:
    """A worker's network, which embeds one segment per call."""

    def __init__(self, load: Callable[[], FileEmbedder], work: Any) -> None:
        import ray

        self._embedder = load()
        self._work = ray.get(work)
        self._class_of = self._embedder.class_namer(self._work.names())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A segment's number, number of images, Parquet file, and skipped files."""
        ((number, table),) = tables(self._embedder, self._work, [row["number"]], self._class_of)
        file = io.BytesIO()
        parquet.write_table(table, file)
        return {
            "number": number,
            "images": table.num_rows,
            "file": file.getvalue(),
            "skipped": json.dumps(json.loads(table.schema.metadata[META])["skipped"]),
        }


def write_on_ray(
    embedder: FileEmbedder,
    load: Callable[[], FileEmbedder],
    work: Work,
    part: int,
    parts: int,
    out: Path,
    workers: RayWorkers,
) -> int:
    """Embed a part of a listing with Ray Data workers; return the number of images.

    Each worker calls ``load``, and reads run and images by their paths. A worker that dies is replaced, and its
    segments are embedded again.
    """
    with needs_extra("ray", "--on ray"):
        import ray
        import ray.data
    numbers = pending(embedder, work, part, parts, out)
    if not numbers:
        return 0
    # without an address: this machine alone, also where a cluster runs on it, or RAY_ADDRESS names one
    options: dict[str, Any] = {} if workers.address else {"num_cpus": workers.jobs, "include_dashboard": False}
    environment = {"env_vars": {"OMP_NUM_THREADS": str(threads_for(workers.jobs))}}
    ray.init(address=workers.address or "local", runtime_env=environment, log_to_driver=False, **options)
    images = 0
    shared = ray.put(work)
    try:
        found = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        done = found.map(
            Embedder,
            fn_constructor_args=(load, shared),
            concurrency=workers.jobs,
            num_cpus=1,
            num_gpus=workers.gpus or None,
        )
        for row in done.iter_rows():
            write_atomically(out / work.file(row["number"]), operator.methodcaller("write_bytes", row["file"]))
            embedder.warn_of_skipped(json.loads(row["skipped"]))
            images += row["images"]
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise DataError(f"Ray: {one_line(cause)}; files that were written stay, type the command again") from None
    finally:
        ray.shutdown()
    return images

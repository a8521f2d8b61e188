"""Embed made-up photographs in parts, with Ray and in one process.

``python -m benchmarks.parts [--count 20000]`` compares the rows of one ``embed`` with 1, 4 and 16 parts (one
of four killed and restarted) and of two Ray workers (one killed). Then it times one process with ``--part`` against
``embed``, and two Ray workers against two processes.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet

from .embedding_speed import a_run, photographs

SIDE = 64
REPEATS = 3
PML_EXT = [sys.executable, "-m", "pml_ext", "embed"]


def started(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PML_EXT, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finished(*processes: subprocess.Popen[bytes]) -> None:
    codes = [process.wait() for process in processes]
    assert codes == [0] * len(codes), codes


def rows(place: Path) -> tuple[list[str], np.ndarray]:
    if place.suffix == ".npz":
        loaded = np.load(place)
        return loaded["paths"].tolist(), loaded["embeddings"]
    table = pyarrow.concat_tables([parquet.read_table(file) for file in sorted(place.glob("*.parquet"))])
    points = table["embedding"].combine_chunks().flatten().to_numpy()
    return table["path"].to_pylist(), points.reshape(table.num_rows, -1)


def kill_when(place: Path, files: int, victim: object) -> threading.Thread:
    """Kill the process ``victim`` returns, once there are so many files."""

    def watch() -> None:
        while len(list(place.glob("embeddings-*"))) < files:
            time.sleep(0.01)
        os.kill(victim(), signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def ray_worker() -> int:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        if place.read_bytes().startswith(b"ray::MapWorker"):
            return int(place.parent.name)
    raise RuntimeError("no worker of Ray")


def seconds(place: Path) -> float:
    """Seconds from the first file to the last."""
    times = sorted(file.stat().st_mtime for file in place.glob("embeddings-*"))
    return (times[-1] - times[0]) * len(times) / (len(times) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        photographs(place / "photos", options.count, SIDE, SIDE)
        run = a_run(place, "convnet", SIDE)
        finished(started(run, place / "photos", "-o", place / "one.npz", "--store", place / "store"))
        names, points = rows(place / "one.npz")
        for parts in (1, 4, 16):
            out = place / f"in {parts}"
            for part in range(1, parts + 1):
                process = started(run, place / "photos", "-o", out, "--part", f"{part}/{parts}")
                if parts == 4 and part == 2:
                    there = len(list(out.glob("embeddings-*")))
                    kill_when(out, there + options.count // 1024, lambda process=process: process.pid).join()
                    print(
                        f"a part killed: exit {process.wait()}, {len(list(out.glob('embeddings-*')))} files are there"
                    )
                    process = started(run, place / "photos", "-o", out, "--part", f"{part}/{parts}")
                finished(process)
            same = rows(out)[0] == names and np.array_equal(rows(out)[1], points)
            print(f"{parts} parts: {len(rows(out)[0])} rows, {'the same' if same else 'DIFFERENT'} to the last bit")
        process = started(run, place / "photos", "-o", place / "by ray", "--on", "ray", "-j", 2)
        kill_when(place / "by ray", options.count // 512, ray_worker).join()
        finished(process)
        same = rows(place / "by ray")[0] == names and np.array_equal(rows(place / "by ray")[1], points)
        print(f"Ray, a worker killed: {len(rows(place / 'by ray')[0])} rows, {'the same' if same else 'DIFFERENT'}")

        taken: dict[str, list[float]] = {}
        for repeat in range(options.repeats):
            out = place / f"timed {repeat}"
            out.mkdir()
            before = time.perf_counter()
            finished(started(run, place / "photos", "-o", out / "one.npz", "--store", out / "store", "--workers", 0))
            taken.setdefault("embed, whole command", []).append(time.perf_counter() - before)
            before = time.perf_counter()
            finished(started(run, place / "photos", "-o", out / "part", "--part", "1/1", "--workers", 0))
            taken.setdefault("--part 1/1, whole command", []).append(time.perf_counter() - before)
            two = [("--part", f"{part}/2", "--workers", 0) for part in (1, 2)]
            before = time.perf_counter()
            finished(*[started(run, place / "photos", "-o", out / "two", *part) for part in two])
            taken.setdefault("two processes, whole commands", []).append(time.perf_counter() - before)
            taken.setdefault("two processes, first to last file", []).append(seconds(out / "two"))
            before = time.perf_counter()
            finished(started(run, place / "photos", "-o", out / "ray", "--on", "ray", "-j", 2))
            taken.setdefault("two workers of Ray, whole command", []).append(time.perf_counter() - before)
            taken.setdefault("two workers of Ray, first to last file", []).append(seconds(out / "ray"))
        medians = {name: statistics.median(values) for name, values in taken.items()}
        for name, value in medians.items():
            print(f"{name}: {value:.1f} s, {options.count / value:.0f} images/s")
        one = medians["embed, whole command"]
        part = medians["--part 1/1, whole command"]
        two = medians["two processes, first to last file"]
        ray = medians["two workers of Ray, first to last file"]
        print(f"throughput: --part 1/1 is {one / part:.2f} of embed; Ray is {two / ray:.2f} of two processes")


if __name__ == "__main__":
    main()

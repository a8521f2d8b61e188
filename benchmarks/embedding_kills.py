"""Kill ``pml-ext index`` and start it again: ``python -m benchmarks.embedding_kills``.

The index of a command that was killed three times (``--kills``) is compared with an undisturbed one. Then 200 of 10,000
images (``--count``) are added, 100 deleted and 50 replaced; the result is compared with a new collection.
"""

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from pml_ext import load_run
from pml_ext_search.embedding.folder_pass import WRITTEN

from .embedding_speed import a_run, photographs

COMMAND = [sys.executable, "-m", "pml_ext"]


def rows(store: Path) -> int:
    if not (store / "images.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(store / "images.sqlite", timeout=60)) as connection:
        try:
            return connection.execute("SELECT count(*) FROM embedded").fetchone()[0]
        except sqlite3.OperationalError:  # not created yet
            return 0


def same(first, second) -> str:
    assert sorted(first.paths) == sorted(second.paths)
    rows = [second.paths.index(path) for path in first.paths]
    difference = float((first.embeddings - second.embeddings[rows]).abs().max())
    assert difference < 1e-5
    return f"{len(first.paths)} images, the same paths, embeddings within {difference:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = random.Random(settings.seed)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        folder = place / "photographs"
        run = a_run(place, "convnet", 32)
        photographs(folder, settings.count, 500, 375)
        line = [*COMMAND, "index", str(run), str(folder), "--workers", "2", "--device", "cpu"]
        subprocess.run([*line, "--store", str(place / "calm")], check=True)
        line += ["--store", str(place / "store")]
        for _ in range(settings.kills):
            moment = draw.uniform(0, 2)
            kept = rows(place / "store")
            process = subprocess.Popen(line)
            while rows(place / "store") == kept and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moment)
            process.kill()
            process.wait()
            now = rows(place / "store")
            assert now >= kept
            print(
                f"killed {moment:.1f} s after its first rows: the collection has {now} of {settings.count} images, "
                f"{now - kept} new"
            )
        kept = rows(place / "store")
        subprocess.run(line, check=True)
        trained = load_run(run, "cpu", store=place / "store")
        print("index:", same(trained.gallery().embedded, load_run(run, "cpu", store=place / "calm").gallery().embedded))
        twice = rows(place / "store") - settings.count
        print(
            f"after {settings.kills} kills the last command embedded {settings.count - kept} images, {twice} of "
            f"which the collection had; {WRITTEN} images are written at a time"
        )
        assert twice == 0
        changed(place, folder, run, settings.count)


def changed(place: Path, folder: Path, run: Path, count: int) -> None:
    added = count // 50
    deleted = count // 100
    replaced = count // 200
    files = sorted(folder.glob("*/*.jpg"))
    generator = np.random.default_rng(1)
    chosen = [files[number] for number in generator.permutation(len(files))]
    for file in chosen[:deleted]:
        file.unlink()
    for number in range(added):
        shutil.copy(chosen[-1 - number], folder / "class 00" / f"added {number}.jpg")
    for file in chosen[deleted : deleted + replaced]:
        Image.fromarray(generator.integers(256, size=(60, 80, 3), dtype=np.uint8)).save(file)
    begun = time.perf_counter()
    processors = os.times()
    again = load_run(run, "cpu", store=place / "store").embed_folder(folder)
    taken = time.perf_counter() - begun
    used = sum(os.times()[:4]) - sum(processors[:4])
    print(
        f"{added} added, {deleted} deleted, {replaced} replaced: {again.new} embedded in {taken:.1f} s, {used:.1f} s "
        "of processors, the network's loading included"
    )
    assert again.new == added + replaced
    print("from scratch:", same(again, load_run(run, "cpu", store=place / "scratch").embed_folder(folder)))


if __name__ == "__main__":
    main()

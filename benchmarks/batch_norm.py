"""Batch norms of a pretrained trunk, trained in batches of several sizes: MAP@R on new classes.

``python -m benchmarks.batch_norm PHOTOS`` (extra ``photos``) needs a folder with ``train`` and ``test``, each with a
sub-folder per class. Batch norms use each batch, keep ImageNet's statistics (``freeze_batch_norm``), or are frozen.
Twenty minutes on one core.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pml_ext import keep_freed_memory
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training.evaluation import evaluate_split
from pml_ext_train.training.loop import train_run
from pml_ext_train.training.run import Run

RECIPE = "fit/photographs-pretrained"
METRIC = "map_at_r"
BY_BATCH = "batch"
KEPT = "kept"
MODES = {  # of batch norms, by the statistics that they normalize with
    BY_BATCH: {"model.freeze": "none", "model.freeze_batch_norm": False},
    KEPT: {"model.freeze": "none", "model.freeze_batch_norm": True},
    "kept-weights-too": {"model.freeze": ["*bn?"], "model.freeze_batch_norm": True},
}


def link_some(source: Path, target: Path, classes: int, images: int) -> None:
    for folder in sorted(path for path in source.iterdir() if path.is_dir())[:classes]:
        (target / folder.name).mkdir(parents=True)
        for file in sorted(folder.iterdir())[:images]:
            (target / folder.name / file.name).symlink_to(file.resolve())


def settings_of(given: argparse.Namespace, photos: Path, batch: int, mode: dict[str, Any]) -> dict[str, Any]:
    iterations = given.classes * given.images // batch
    return {
        **mode,
        "model.views": 1,
        "model.start": "random",
        "model.refit": "none",
        "optimizer.head_lr_factor": 1.0,
        "data.name": f"folder:{photos}",
        "data.images.resize": given.size,
        "data.images.crop": given.size,
        "data.images.random_crop_scale": [0.25, 1.0],
        "data.images.flip": True,
        "data.cache": "memory",
        "sampler.batch_size": batch,
        "sampler.iterations": iterations,
        "optimizer.lr": given.lr,
        "schedule.epochs": given.epochs,
        "evaluation.baselines": False,
        "evaluation.training_images": 0,
        "track": [],
    }


def tested(run: Run, _: Any) -> dict[str, Any]:
    return {"after": evaluate_split(run, "test", clustering=False)}


def trained(settings: dict[str, Any], seed: int, epochs: int | None = None) -> float:
    """MAP@R in % after training; without an epoch, of the untrained network."""
    if epochs == 0:
        settings = settings | {"model.freeze": "trunk", "model.embedder": "none", "model.embedding_size": 1280}
    recipe = load_recipe(RECIPE, settings)
    with tempfile.TemporaryDirectory(prefix="batch-norm-") as place:
        run = Run(recipe, RECIPE, Path(place), seed, "cpu")
        return 100 * float(train_run(run, finish=tested)["after"][METRIC])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("photos", type=Path)
    options.add_argument("--batches", type=int, nargs="+", default=[16, 32, 64, 128])
    options.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES], help="statistics of batch norms")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--classes", type=int, default=32, help="of train and of test")
    options.add_argument("--images", type=int, default=12, help="of a class")
    options.add_argument("--size", type=int, default=96, help="pixels")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--lr", type=float, default=1e-4)
    options.add_argument("--json", type=Path, help="a file for each run's value")
    given = options.parse_args()
    keep_freed_memory("cpu")

    values: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="batch-norm-photos-") as folder:
        photos = Path(folder)
        for part in ("train", "test"):
            link_some(given.photos / part, photos / part, given.classes, given.images)
        settings = settings_of(given, photos, given.batches[0], MODES[KEPT])
        print(f"frozen features: MAP@R {trained(settings, 0, epochs=0):.1f}", flush=True)
        for batch in given.batches:
            cells = []
            for title in given.modes:
                started = time.perf_counter()
                found = []
                for seed in range(given.seeds):
                    found.append(trained(settings_of(given, photos, batch, MODES[title]), seed))
                values[f"{batch}, {title}"] = found
                seconds = time.perf_counter() - started
                cells.append(f"{title} {statistics.fmean(found):.1f} ({seconds:.0f} s)")
                if given.json is not None:
                    given.json.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
            print(f"batches of {batch}: {'; '.join(cells)}", flush=True)
            if {BY_BATCH, KEPT} <= {*given.modes}:
                pairs = zip(values[f"{batch}, {BY_BATCH}"], values[f"{batch}, {KEPT}"], strict=True)
                differences = ", ".join(f"{by_batch - kept:+.1f}" for by_batch, kept in pairs)
                print(f"  {BY_BATCH} - {KEPT}, by seed: {differences}", flush=True)


if __name__ == "__main__":
    main()

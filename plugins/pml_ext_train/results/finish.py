"""The end of a run: tests, ``metrics.json``, report."""

import time
from collections.abc import Collection, Mapping
from typing import Any

from pml_ext.errors import first_of

from ..files.checksums import SUMS
from ..recipe import plugins_in
from ..records import DERIVED, METRICS, NETWORK, REPORT, TEST, Records, write_checksums, write_csv_files, write_run_json
from ..training import Checkpointer, Run, checkpoint, evaluate_split, load_model, metrics_after, refit, tested_features
from ..training.checks import collapse
from ..training.devices import device_name
from .findings import counts, queries_of_metrics, recall_by_class
from .run_report import write_run_report
from .verdict import better_features


def finish(run: Run, records: Records) -> dict[str, Any]:
    """Test the network on rank 0; write the report, and write and return ``metrics.json``."""
    best = run.epoch
    metrics: dict[str, Any] = {"after": {}}  # of data without labels
    if run.data.labeled:
        best, metrics = _tested(run, records)
    else:
        Checkpointer(run).save_model()
    records.close()
    result = _about(run, best) | metrics
    write_run_json(run.folder, METRICS, result)
    write_report(run, result)
    return result


def _tested(run: Run, records: Records) -> tuple[int, dict[str, Any]]:
    """Save the trained network; return the tested epoch, and the metrics by phase."""
    run.pseudo_labels = None
    run.listener.step("testing the trained network" if run.epochs else "testing the network, without training")
    started = time.perf_counter()
    best = load_model(run, "best")["epoch"] if run.history.best["epoch"] is not None else run.epoch
    metrics = dict(run.history.metrics)
    features = None
    if run.recipe.model.refit == "within-class":
        run.listener.step("fitting the head again, to the trained features")
        features = tested_features(run)
        metrics["trained_head"] = evaluate_split(run, run.queries)
        of_training = run.inputs.features("train", run.stages[-1])
        refit(run, of_training)
        for split, rows in features.items():
            run.embed_features(split, rows)
        run.embed_features("train", of_training)
    Checkpointer(run).save_model()
    metrics |= metrics_after(run, run.stages, features)
    records.add(run.epoch, {TEST: metrics["after"]})
    _warn_of_the_end(run)
    run.history.test_seconds += time.perf_counter() - started
    ahead = better_features(metrics, run.folder, run.recipe)
    if ahead and ahead not in run.history.warnings:
        run.history.warnings.append(ahead)  # shown with the metrics, not before
    return best, metrics


def _warn_of_the_end(run: Run) -> None:
    tuples = run.images(run.queries).tuples
    similarity = collapse(run.embeddings(run.queries), run.true_labels(run.queries) if tuples is None else tuples)
    if similarity:
        run.warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
    if run.history.skipped:
        run.warn(
            f"{run.history.skipped} of {run.stages.iterations_until(run.epoch)} iterations were skipped, "
            "because a loss, an embedding or a gradient was not finite"
        )


def _about(run: Run, best: int) -> dict[str, Any]:
    """Return the content of ``metrics.json`` besides the metrics."""
    history = run.history
    about = {
        "recipe": run.name,
        "seed": run.seed,
        "device": device_name(run.device),
        "processes": run.processes,
        "versions": checkpoint.versions(),
        "plugins": plugins_in(run.recipe.as_dict()),
        "input": run.data.noun,
        "images": counts(run),
        "seconds": {
            "baselines": round(history.baseline_seconds, 3),
            "train": round(history.train_seconds, 3),
            "test": round(history.test_seconds, 3),
        },
        "epochs": run.epochs,
        "best_epoch": best,
        "skipped_iterations": history.skipped,
        "warnings": history.warnings,
    }
    if run.data.labeled and run.data.listed is None:
        about |= queries_of_metrics(run)
        about["recall_at_1_by_class"] = recall_by_class(run)
    return about


def write_report(run: Run, metrics: Mapping[str, Any], lost: Collection[str] = ()) -> None:
    """Write the report, and checksums of all but ``lost`` files."""
    run.listener.step("writing the report")
    write_run_report(run, run.stages, metrics, run.listener.warn)
    write_checksums(run.folder, lost)


def write_again(run: Run, metrics: Mapping[str, Any], damaged: Collection[str] = ()) -> None:
    """Regenerate the derived files of a finished run, and warn about ``damaged`` ones."""
    load_model(run, "model")
    run.epoch = run.epochs
    has_records = "records/logs.db" not in damaged
    derived = (*DERIVED, "records/") if has_records else DERIVED
    lost = [name for name in damaged if not name.startswith(derived)]
    named = [name for name in damaged if name != REPORT or (run.folder / REPORT).exists()]
    if named:
        run.listener.warn(
            f"{run.folder}: damaged or changed, according to {SUMS}: {first_of(named, 4)}; repairable files are "
            "written again"
        )
    if has_records:
        write_csv_files(run.folder / "records")
    write_run_json(run.folder, NETWORK, run.data.network_json(run.network.features))
    write_report(run, metrics, lost)

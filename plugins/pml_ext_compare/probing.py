"""Comparison of frozen trunks on a data set: unchanged, with whitened principal components, and with a trained head."""

from __future__ import annotations

import dataclasses
import json
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from pml_ext.tool import (
    Listener,
    ReportFigure,
    ReportTable,
    build_dataset,
    build_network,
    choose_device,
    load_recipe,
    percent,
    preprocessing_of,
    render,
    spread,
    title_of,
    train,
    write_csv,
    write_json,
    write_text,
)

from .running import slug
from .statistics import paired_difference

METRICS = ("recall_at_1", "map_at_r", "nmi")
COLUMNS = ["trunk", "parameters", "features", "images/s"]
HEADS = [*COLUMNS, "%", *map(title_of, METRICS)]
ROWS = {"frozen": "frozen trunk", "pca": "PCA", "head": "head"}
BASE = "pml/multi-similarity/frozen"
_GALLERY = "figures/queries-and-their-nearest-test-images.png"
_TIMED = 3  # forward passes; the fastest is reported
_BATCH = 16  # images per forward pass


@dataclasses.dataclass(frozen=True)
class Probe:
    """One trunk of a comparison."""

    trunk: str
    parameters: int
    features: int
    images_per_second: float  # forward, in batches of 16
    metrics: dict[str, dict[str, dict[str, float | None]]]  # mean and std by row ("frozen", "pca", "head") and metric
    gain: dict[str, dict[str, float | None]]  # of the head over the frozen trunk, paired by seed, by metric
    folders: list[str]  # of its runs, relative to the comparison's


def probe(
    data_set: str,
    trunks: Sequence[str],
    out: Path,
    head: str | None = None,
    seeds: int = 1,
    device: str = "auto",
    data: Path | None = None,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
) -> list[Probe]:
    """Test frozen trunks on the test classes of a data set, and heads that are trained on their features.

    Finished runs in ``out`` are reused, and features of earlier comparisons come from the cache. ``data_set`` is
    ``folder:PATH``, ``table:FILE.csv`` or a data set's name; a trunk may have a file of weights, or the library's name
    of them, as in ``NAME=WEIGHTS``; ``head`` is the recipe of a head to train ``seeds`` times on each trunk. The other
    arguments are those of :func:`~.launch.train`. ``out`` gets the runs, ``probe.json``, ``.csv`` and ``.html``.
    """
    settings_by_trunk = {}
    for trunk in trunks:  # raise errors before any computation
        name, _, weights = trunk.partition("=")
        table = f"{{name={json.dumps(name)}" + (f", weights={json.dumps(weights)}" if weights else "") + "}"
        settings = [f"data.name={data_set}", f"model.trunk={table}", "model.freeze=trunk", *overrides]
        load_recipe(head or BASE, settings)
        settings_by_trunk[trunk] = settings
    probes = []
    for trunk, settings in settings_by_trunk.items():
        about = _about(settings, device, data)
        place = out / slug(trunk)
        own = [*settings, "model.embedder=none", f"model.embedding_size={about['features']}"]
        runs = train(BASE, place / "frozen", 0, 1, device, data, own, (place / "frozen").exists(), listener)
        phases, folders, gain = {"frozen": "frozen", "pca": "pca"}, [place / "frozen"], {}
        if head is not None:
            phases["head"], runs = "after", []
            for seed in range(seeds):
                there = place / f"head-{seed}"
                runs += train(head, there, seed, 1, device, data, settings, there.exists(), listener)
            folders += [Path(run["folder"]) for run in runs]
            for metric in METRICS:
                before, after = ([run[phase][metric] for run in runs] for phase in ("frozen", "after"))
                found = paired_difference(before, after)
                gain[metric] = {"mean": found.mean, "std": found.std, "p": found.p, "pairs": found.pairs}
        means = {
            row: {metric: spread([run[phase][metric] for run in runs]) for metric in METRICS}
            for row, phase in phases.items()
        }
        names = [folder.relative_to(out).as_posix() for folder in folders]
        probes.append(Probe(trunk, **about, metrics=means, gain=gain, folders=names))
        _write(out, data_set, probes)
    return probes


def _about(settings: Sequence[str], device: str, data: Path | None) -> dict[str, Any]:
    """Return the size of a trunk and its features, and its throughput in images per second."""
    recipe = load_recipe(BASE, settings)
    preprocessing, _ = preprocessing_of(recipe, build_dataset(recipe.data, data))
    network = build_network(recipe.model, preprocessing).to(choose_device(device)).eval()
    where = next(network.parameters()).device
    images = torch.zeros(_BATCH, preprocessing.channels, *[preprocessing.image_size] * 2, device=where)
    with torch.no_grad():
        seconds = min(timeit.repeat(lambda: network.trunk(images).sum().item(), number=1, repeat=_TIMED))
    parameters = sum(parameter.numel() for parameter in network.trunk.parameters())
    return {"parameters": parameters, "features": network.features, "images_per_second": _BATCH / seconds}


def _write(out: Path, data_set: str, probes: Sequence[Probe]) -> None:
    """Write the probes so far as JSON, CSV and HTML."""
    write_json(out / "probe.json", {"data": data_set, "trunks": [dataclasses.asdict(each) for each in probes]})
    keys = [(metric, value) for metric in METRICS for value in ("mean", "std")]
    lines: list[list[Any]] = [[*COLUMNS, "row", *(f"{metric} {value}" for metric, value in keys)]]
    for each in probes:
        about = [each.trunk, each.parameters, each.features, each.images_per_second]
        lines += [
            [*about, row, *(found[metric][value] for metric, value in keys)] for row, found in each.metrics.items()
        ]
    write_csv(out / "probe.csv", lines)
    rows = [cells for each in probes for cells in table_rows(each)]
    caption = "Test classes, cosine similarity, percent; heads: mean and standard deviation over seeds."
    pictures = [_picture(out, each) for each in probes]
    table = ReportTable("Trunks", HEADS, rows, caption)
    page = render("comparison", title=f"Frozen trunks on {data_set}", tables=[table], figures=pictures)
    write_text(out / "probe.html", page)


def _picture(out: Path, probe: Probe) -> ReportFigure:
    """Return a trunk's queries and their nearest images, with the head if there is one, and links to its reports."""
    place = out / probe.folders[-1] / _GALLERY
    if not place.exists():
        return ReportFigure(probe.trunk, problem=f"no {place}")
    links = Markup(" ").join(Markup('<a href="{0}/report.html">{0}</a>').format(folder) for folder in probe.folders)
    head = ", with the head" * bool(probe.gain)
    return ReportFigure(probe.trunk, place.read_bytes(), f"Queries and their nearest test images{head}: " + links)


def table_rows(probe: Probe) -> list[list[str]]:
    """Return the rows of a trunk in the table: unchanged, its components, its head, and the head's gain."""
    first = [probe.trunk, f"{probe.parameters / 1e6:.1f} M", str(probe.features), f"{probe.images_per_second:.0f}"]
    rows = [[ROWS[row], *(_mean_std(metrics[metric]) for metric in METRICS)] for row, metrics in probe.metrics.items()]
    if probe.gain:
        tests = ["" if each["p"] is None else f" (p = {each['p']:.3f})" for each in probe.gain.values()]
        gains = [_mean_std(each, "+") for each in probe.gain.values()]
        rows.append(["head less frozen", *(gain + test for gain, test in zip(gains, tests, strict=True))])
    return [[*([""] * len(first) if number else first), *row] for number, row in enumerate(rows)]


def _mean_std(about: Mapping[str, float | None], sign: str = "") -> str:
    mean, std = percent(about["mean"], sign), percent(about["std"])
    return f"{mean} ± {std}" if std else mean

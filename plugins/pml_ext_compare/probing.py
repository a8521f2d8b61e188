"""Frozen trunks compared: features, principal components, and trained heads."""

import dataclasses
import itertools
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from pml_ext.distributed import choose_device
from pml_ext.errors import ConfigError
from pml_ext.evaluation import title_of
from pml_ext_train.files import write_json, write_text
from pml_ext_train.launch import train
from pml_ext_train.networks import named_trunk
from pml_ext_train.recipe import Override, build_dataset, build_network, load_recipe, overrides_of, preprocessing_of
from pml_ext_train.records import spread, write_csv
from pml_ext_train.report import ReportFigure, ReportTable, render
from pml_ext_train.training import Listener, open_run

from .runs import slug
from .statistics import paired_difference
from .tables import mean_std

METRICS = ("recall_at_1", "map_at_r", "nmi")
TRUNK_COLUMNS = ["trunk", "parameters", "features", "images/s"]
COLUMNS = [*TRUNK_COLUMNS, "%", *map(title_of, METRICS)]
ROW_NAMES = {"frozen": "frozen trunk", "pca": "PCA", "head": "head"}
FROZEN_PHASES = {"frozen": "frozen", "pca": "pca"}  # by row, the phase of a run's metrics
HEAD_PHASE = "after"
BASE_RECIPE = "pml/multi-similarity/frozen"
_GALLERY = "figures/queries-and-their-nearest-test-images.png"
_TIMED = 3  # forward passes; the fastest is reported
_BATCH = 16  # images per forward pass
# Overrides of these keys are for heads; the recipe of the features may not have them.
_OF_HEADS = (
    "loss",
    "sampler",
    "stages",
    "optimizer",
    "evaluation.shortlist",
    "model.embedder",
    "model.hidden_sizes",
    "model.norm",
    "model.dropout",
)
# The run of the unwhitened features trains nothing; this sampler fits data of any size.
_NO_TRAINING = {"name": "pml/m-per-class", "m": 1, "batch_size": 2}


@dataclasses.dataclass(frozen=True)
class Probe:
    """The results of one trunk."""

    trunk: str
    parameters: int
    features: int
    images_per_second: float  # forward, in batches of 16
    metrics: dict[str, dict[str, dict[str, float | None]]]  # mean and std by row ("frozen", "pca", "head") and metric
    gain: dict[str, dict[str, float | None]]  # of the head over the frozen trunk, paired by seed, by metric
    folders: list[str]  # of its runs, relative to the comparison's


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """Data, head and place of a comparison of trunks."""

    data_set: str  # folder:PATH, table:FILE.csv, or the name of a data set
    out: Path  # gets the runs, probe.json, .csv and .html
    head: str | None = None  # the recipe of a head that is trained on each trunk
    seeds: int = 1  # of heads
    device: str = "auto"
    data: Path | None = None
    overrides: Sequence[Override] = ()
    listener: Listener | None = None


def probe(trunks: Sequence[str], options: ProbeOptions) -> list[Probe]:
    """Test frozen trunks on the test classes of a data set, and heads trained on their features.

    Finished runs and cached features are reused. Wrong settings raise ConfigError before any computation.
    """
    of_heads = [override for override in options.overrides if override.key.startswith(_OF_HEADS)]
    if of_heads and options.head is None:
        raise ConfigError(f"{of_heads[0]}: it is for a head; add --head RECIPE, or leave it out")
    probers = [_Prober(trunk, options) for trunk in trunks]
    for prober in probers:
        recipe = load_recipe(options.head or BASE_RECIPE, prober.settings)
        if not recipe.evaluation.baselines:
            raise ConfigError("evaluation.baselines: found false, and a probe compares the baselines; leave it out")
    probes: list[Probe] = []
    for prober in probers:
        probes.append(prober.probe())
        _write(options.out, options.data_set, probes)
    return probes


class _Prober:
    def __init__(self, trunk: str, options: ProbeOptions) -> None:
        self.trunk = trunk
        self.options = options
        self.place = options.out / slug(trunk)
        own = {"data.name": options.data_set, "model.trunk": named_trunk(trunk), "model.freeze": "trunk"}
        self.settings = [*overrides_of(own), *options.overrides]
        self.settings_of_features = [each for each in self.settings if not each.key.startswith(_OF_HEADS)]

    def probe(self) -> Probe:
        about = _size_and_speed(self.settings_of_features, self.options.device, self.options.data)
        untrained = {"sampler": _NO_TRAINING, "model.embedder": "none", "model.embedding_size": about[1]}
        settings = [*self.settings_of_features, *overrides_of(untrained)]
        runs = self._train(BASE_RECIPE, self.place / "frozen", seed=0, settings=settings)
        folders = [self.place / "frozen"]
        phases = FROZEN_PHASES
        gain = {}
        head = self.options.head
        if head is not None:
            runs = []  # they test the frozen trunk and its components too
            for seed in range(self.options.seeds):
                runs += self._train(head, self.place / f"head-{seed}", seed, self.settings)
            folders += [Path(run["folder"]) for run in runs]
            phases = {**phases, "head": HEAD_PHASE}
            gain = {metric: _gain(runs, metric) for metric in METRICS}
        metrics = {row: _spreads(runs, phase) for row, phase in phases.items()}
        places = [folder.relative_to(self.options.out).as_posix() for folder in folders]
        return Probe(self.trunk, *about, metrics, gain, places)

    def _train(self, recipe: str, folder: Path, seed: int, settings: Sequence[Override]) -> list[dict[str, Any]]:
        """Train or resume a run; DataError if it has other images."""
        has_run = folder.exists()
        runs = train(
            recipe,
            out=folder,
            seed=seed,
            device=self.options.device,
            data=self.options.data,
            overrides=settings,
            resume=has_run,
            listener=self.options.listener,
        )
        if has_run:  # a finished run is returned without a look at the data
            open_run(folder, seed, choose_device(self.options.device), self.options.data)
        return runs


def _spreads(runs: Sequence[Mapping[str, Any]], phase: str) -> dict[str, dict[str, float | None]]:
    return {metric: spread([run[phase][metric] for run in runs]) for metric in METRICS}


def _gain(runs: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float | None]:
    frozen, trained = ([run[phase][metric] for run in runs] for phase in ("frozen", HEAD_PHASE))
    found = paired_difference(frozen, trained)
    return {"mean": found.mean, "std": found.std, "p": found.p, "pairs": found.pairs}


def _size_and_speed(settings: Sequence[Override], device: str, data: Path | None) -> tuple[int, int, float]:
    """The numbers of a trunk's parameters and features, and the images that it embeds in a second."""
    recipe = load_recipe(BASE_RECIPE, settings)
    splits = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, splits)
    network = build_network(recipe.model, preprocessing)
    network.to(choose_device(device)).eval()

    first_parameter = next(network.parameters())
    size = preprocessing.image_size
    images = torch.zeros(_BATCH, preprocessing.channels, size, size, device=first_parameter.device)

    def forward() -> None:
        network.trunk(images).sum().item()  # waits for the device

    with torch.no_grad():
        seconds = min(timeit.repeat(forward, number=1, repeat=_TIMED))
    parameters = sum(parameter.numel() for parameter in network.trunk.parameters())
    return parameters, network.features, _BATCH / seconds


def _write(out: Path, data_set: str, probes: Sequence[Probe]) -> None:
    write_json(out / "probe.json", {"data": data_set, "trunks": list(map(dataclasses.asdict, probes))})
    write_csv(out / "probe.csv", _csv_rows(probes))

    caption = "Test classes, cosine similarity, percent; heads: mean and standard deviation over seeds."
    page = render(
        "comparison",
        title=f"Frozen trunks on {data_set}",
        tables=[ReportTable("Trunks", COLUMNS, rows_of_all(probes), caption)],
        figures=[_picture(out, probe) for probe in probes],
    )
    write_text(out / "probe.html", page)


def _csv_rows(probes: Sequence[Probe]) -> list[list[Any]]:
    columns = [*TRUNK_COLUMNS, "row"]
    for metric in METRICS:
        columns += [f"{metric} mean", f"{metric} std"]

    lines: list[list[Any]] = [columns]
    for probe in probes:
        about = [probe.trunk, probe.parameters, probe.features, probe.images_per_second]
        for row, metrics in probe.metrics.items():
            numbers = itertools.chain.from_iterable((each["mean"], each["std"]) for each in metrics.values())
            lines.append([*about, row, *numbers])
    return lines


def _picture(out: Path, probe: Probe) -> ReportFigure:
    place = out / probe.folders[-1] / _GALLERY
    if not place.exists():
        return ReportFigure(probe.trunk, problem=f"no {place}")

    link = Markup('<a href="{0}/report.html">{0}</a>')
    links = Markup(" ").join(link.format(folder) for folder in probe.folders)
    head = ", with the head" if probe.gain else ""
    return ReportFigure(probe.trunk, place.read_bytes(), f"Queries and their nearest test images{head}: " + links)


def rows_of_all(probes: Sequence[Probe]) -> list[list[str]]:
    """The table's rows: features, their components, the head, and the head's gain."""
    rows = []
    for probe in probes:
        numbers = [f"{probe.parameters / 1e6:.1f} M", str(probe.features), f"{probe.images_per_second:.0f}"]
        about = [probe.trunk, *numbers]
        for row, metrics in probe.metrics.items():
            rows.append([*about, ROW_NAMES[row], *map(mean_std, metrics.values())])
            about = [""] * len(about)  # only the first row names the trunk
        if probe.gain:
            rows.append([*about, "head less frozen", *map(_gain_text, probe.gain.values())])
    return rows


def _gain_text(gain: Mapping[str, float | None]) -> str:
    p = "" if gain["p"] is None else f" (p = {gain['p']:.3f})"
    return mean_std(gain, "+") + p

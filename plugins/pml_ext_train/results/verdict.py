"""What training achieved, in words."""

import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pml_ext.errors import first_of
from pml_ext.evaluation.metrics import headline_metric, title_of

from ..networks.pretrained import is_pretrained
from ..recipe import Recipe
from ..report import percent

PHASES = {
    "raw": "raw pixels",
    "frozen": "frozen trunk",
    "pca": "frozen trunk, PCA",
    "within_class": "frozen trunk, whitened within classes",
    "before": "untrained network",
    "head": "head, trunk frozen",
    "blocks": "last blocks",
    "trained_head": "trained network, its own head",
    "after": "trained network",
    "features": "trained network, features before the head",
    "training": "trained network, training images",
    "learned_metric": "trained network, learned metric",
    "shortlist": "trained network, learned metric on a shortlist",
}
_PHASES_OF_VECTORS = {
    "raw": "raw vectors",
    "pca": "raw vectors, PCA",
    "within_class": "raw vectors, whitened within classes",
    "before": "untrained head",
    "after": "trained head",
    "training": "trained head, training vectors",
    "learned_metric": "trained head, learned metric",
    "shortlist": "trained head, learned metric on a shortlist",
}
# runs in which nothing was trained: raw features, or their components
_PHASES_WITHOUT_TRAINING = {
    "images": {"after": "features, nothing trained", "training": "features of training images"},
    "vectors": {"after": "vectors, nothing trained", "training": "training vectors"},
}
CLOSED_FORMS = {"pca": "pca", "within-class": "within_class"}  # phases of embedders that are not trained
SHORTENED = "first_"  # and a number of dimensions: the phase of shortened embeddings
STAGES = ("head", "blocks")  # phases before the whole network trains
_WITHOUT_FINE_TUNING = "Train without its last stage (in pml-ext fit, without --fine-tune) to keep that."


def phase_titles(noun: str, metrics: Iterable[str] = ()) -> dict[str, str]:
    """Return titles by phase, for ``"images"`` or ``"vectors"``."""
    titles = dict(_PHASES_OF_VECTORS if noun == "vectors" else PHASES)
    metrics = list(metrics)
    if "trained_head" in metrics:
        titles["after"] += ", head fitted again"
    for phase in metrics:
        if phase.startswith(SHORTENED):
            titles[phase] = f"{titles['after']}, first {phase.removeprefix(SHORTENED)} dimensions"
    return titles


def shown_phases(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the phases in a run's table, with titles, in order.

    Without training, equal phases are shown once, except raw pixels beside features.
    """
    noun = metrics.get("input", "images")
    shown = {phase: title for phase, title in phase_titles(noun, metrics).items() if phase in metrics}
    if is_trained(metrics):
        return shown

    shown.pop("before", None)  # the same network
    seen: list[dict[str, str]] = []
    for phase, title in list(shown.items()):
        values = _shown_values(metrics[phase])
        if values in seen:
            del shown[phase]
        elif phase in _PHASES_WITHOUT_TRAINING[noun]:
            shown[phase] = _PHASES_WITHOUT_TRAINING[noun][phase]
        elif title.startswith("trained"):
            shown[phase] = f"un{title}"
        if phase != "raw" or noun == "vectors":
            seen.append(values)
    return shown


def delivered_phase(metrics: Mapping[str, Any]) -> str:
    """Return the shown phase whose embeddings the run delivers."""
    shown = shown_phases(metrics)
    if "after" in shown:
        return "after"
    if metrics.get("input", "images") == "images":
        shown.pop("raw", None)
    return next(phase for phase in shown if _shown_values(metrics[phase]) == _shown_values(metrics["after"]))


def _shown_values(values: Mapping[str, float]) -> dict[str, str]:
    return {name: percent(value) for name, value in values.items()}  # blank where a value is NaN


def is_trained(metrics: Mapping[str, Any]) -> bool:
    """Return whether a run trained anything."""
    return bool(metrics.get("epochs", 1) > 0)


def path_of_data(recipe: Recipe) -> str:
    """Return a recipe's folder of images or file of vectors, or an empty string."""
    kind, _, path = recipe.data.name.partition(":")
    if kind in ("folder", "vectors"):
        return path
    setting = "vectors" if recipe.data.listed is not None and "vectors" in recipe.data.settings else "path"
    return str(recipe.data.settings.get(setting, ""))


def data_of(recipe: Recipe) -> str:
    """Return :func:`path_of_data` quoted for a command line, or ``FOLDER``."""
    return shlex.quote(path_of_data(recipe) or "FOLDER")


def headline(metrics: Mapping[str, Any], seen: bool) -> str:
    """Return a report's first sentences: how often the nearest image is right.

    Unanswerable queries are mentioned, but not counted. ``seen``: whether the tested classes were trained.
    """
    noun = metrics.get("input", "images")
    where = f"{noun} of its classes that it has not seen" if seen else "classes that it has never seen"
    unanswerable = metrics.get("without_answer", {"queries": 0, "classes": []})
    tested = "query" if "query" in metrics["images"] else "test"
    queries = metrics["images"][tested]["images"]
    answerable = queries - unanswerable["queries"]
    left_out = _unanswerable(unanswerable, queries)

    blank = metrics.get("blank", {}).get("recall_at_1", "")
    if blank:
        return f"On {where}, nothing can be said about the nearest {noun[:-1]}: {blank}."
    counted = metrics.get("queries", {}).get("recall_at_1", queries)
    after = 100 * metrics["after"]["recall_at_1"] * counted / answerable
    of_queries = f"the {answerable:,} queries that have a right answer" if left_out else "queries"
    text = f"On {where}, the nearest {noun[:-1]} is right for {after:.0f}\N{NO-BREAK SPACE}% of {of_queries}"
    if "raw" not in metrics:
        return f"{text}.{left_out}"
    raw = 100 * metrics["raw"]["recall_at_1"] * counted / answerable
    by_raw = phase_titles(noun)["raw"]
    if after <= raw and not is_trained(metrics):
        return f"{text}, and by {by_raw} for {raw:.0f}\N{NO-BREAK SPACE}%.{left_out}"
    if after <= raw:
        advice = ", or start from pretrained weights" if noun == "images" else ""
        return f"{text}, no better than {by_raw} ({raw:.0f}\N{NO-BREAK SPACE}%): train longer{advice}.{left_out}"
    return f"{text}; by {by_raw} it is for {raw:.0f}\N{NO-BREAK SPACE}%.{left_out}"


def _unanswerable(without_answer: Mapping[str, Any], queries: int) -> str:
    number = without_answer["queries"]
    if not number:
        return ""
    verbs = ("has", "is") if number == 1 else ("have", "are")
    text = f" {number:,} of {queries:,} queries {verbs[0]} none and {verbs[1]} not counted"
    classes = without_answer["classes"]
    if classes:
        text += f": {'class' if len(classes) == 1 else 'classes'} {first_of(classes, 5)}"
    return f"{text}."


def better_features(metrics: Mapping[str, Mapping[str, float]], folder: Path, recipe: Recipe) -> str:
    """Say that features before the head beat the embeddings, or nothing.

    Compared by Recall@1 and MAP@R; ``folder`` is the run's, for the suggested command.
    """
    phase = "frozen" if recipe.model.embedder in CLOSED_FORMS else "features"
    if phase not in metrics or recipe.model.takes_vectors:
        return ""
    after = metrics["after"]
    for name in (headline_metric(after), "map_at_r"):
        if name in after and metrics[phase][name] > after[name]:
            return (
                f"The features before the head are better than the embeddings: {title_of(name)} is "
                f"{percent(metrics[phase][name])} % instead of {percent(after[name])} %. To search by them, type: "
                f"pml-ext index {shlex.quote(str(folder))} {data_of(recipe)} --by features"
            )
    return ""


def setback(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Say that a network is behind its untrained, frozen or raw start, or nothing.

    Compared by ``evaluation.select``, else by Recall@1 and MAP@R, also with within-class whitening.
    """
    if _nothing_is_learned(recipe):
        return ""
    after = metrics["after"]
    select = recipe.evaluation.select
    names = [headline_metric(after), "map_at_r"] if select is None else [select]
    for name in names:
        untrained = {
            phase: metrics[phase][name]
            for phase in _phases_to_compare(recipe, metrics)
            if name in metrics.get(phase, ())
        }
        best = max(untrained, key=lambda phase: untrained[phase], default=None)
        if best is not None and after[name] < untrained[best]:  # NaN is not behind
            return _setback_sentence(recipe, name, after[name], best, untrained[best])
    return ""


def _nothing_is_learned(recipe: Recipe) -> bool:
    return recipe.model.freeze == "trunk" and recipe.model.embedder == "none"


def _phases_to_compare(recipe: Recipe, metrics: Mapping[str, Any]) -> list[str]:
    frozen = [] if recipe.model.takes_vectors else ["frozen"]
    closed_forms = ["within_class", "pca"] if any(phase in metrics for phase in STAGES) else ["within_class"]
    return ["before", *frozen, "raw", *closed_forms, *STAGES]


def _setback_sentence(recipe: Recipe, name: str, after: float, phase: str, before: float) -> str:
    titles = phase_titles("vectors" if recipe.model.takes_vectors else "images")
    network = "head" if recipe.model.freeze == "trunk" else "trained network"
    earlier = "before training."
    if recipe.model.embedder in CLOSED_FORMS:
        network = titles[CLOSED_FORMS[recipe.model.embedder]]
        earlier = "without whitening." if phase != "within_class" else "with it."
    elif phase == "within_class":
        earlier = 'without any training: [model] embedder = "within-class", or refit = "within-class" after it.'
    elif phase in STAGES:
        earlier = f"before the whole network trained. {_WITHOUT_FINE_TUNING}"
    if phase == "raw" and not recipe.model.takes_vectors:
        earlier = "without any network."
    numbers = f"{title_of(name)} is {percent(after)} %, and {percent(before)} % {earlier}"
    return f"The {network} is behind the {titles[phase]}: {numbers}"


def not_compared(recipe: Recipe) -> str:
    """Say that a network was not compared with its pretrained features, or nothing."""
    is_compared = recipe.evaluation.baselines or _nothing_is_learned(recipe)
    if is_compared or not is_pretrained(recipe.model.trunk.settings):
        return ""
    return (
        "The tests before training were skipped, so the network may be worse than the frozen trunk. To "
        "compare them, train without --quick and without evaluation.baselines = false."
    )


def gain_of_fine_tuning(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Say what training the whole network added, or nothing."""
    phase = next((phase for phase in STAGES if phase in metrics), None)
    if phase is None or setback(recipe, metrics):
        return ""
    name = recipe.evaluation.select or headline_metric(metrics["after"])
    after = metrics["after"][name]
    before = metrics[phase][name]
    if math.isnan(after) or math.isnan(before):
        return ""
    paid = "has paid" if after > before else "has added nothing"
    numbers = f"{percent(after)} % after it; {PHASES[phase]} {percent(before)} %"
    if name in metrics.get("frozen", ()):
        numbers += f", {PHASES['frozen']} {percent(metrics['frozen'][name])} %"
    return f"Training the whole network {paid}: {title_of(name)} is {numbers}."


def verdict(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]], folder: Path) -> str:
    """Return sentences on what training achieved; ``folder`` is the run's."""
    if not metrics["after"]:  # nothing was tested
        return ""
    sentences = [
        not_compared(recipe),
        setback(recipe, metrics),
        gain_of_fine_tuning(recipe, metrics),
        better_features(metrics, folder, recipe),
    ]
    return " ".join(sentence for sentence in sentences if sentence)

"""What training has brought, in words."""

from pathlib import Path

import pytest

from pml_ext_train.recipe import load_recipe, load_recipes
from pml_ext_train.results.verdict import better_features, setback, verdict

from ....overrides import typed

FROZEN = ("model.freeze=trunk", "model.trunk.weights=random")
BY_MAP = ("evaluation.select=map_at_r", "evaluation.validation=0.5")
BEHIND = "The trained network is behind the"


@pytest.mark.parametrize(
    ("overrides", "recalls", "text"),
    [
        ((), {"before": 0.421, "after": 0.373}, f"{BEHIND} untrained network: Recall@1 is 37.3 %, and 42.1 % before "),
        ((), {"before": 0.3, "after": 0.3}, ""),
        ((), {"after": 0.3}, ""),
        ((), {"before": 0.1, "frozen": 0.421, "after": 0.373}, f"{BEHIND} frozen trunk: Recall@1 is 37.3 %"),
        ((), {"frozen": 0.3, "after": 0.4}, f"{BEHIND} frozen trunk: MAP@R is 60.0 %, and 70.0 % before training."),
        (BY_MAP, {"before": 0.421, "after": 0.373}, ""),
        (BY_MAP, {"before": 0.373, "after": 0.421}, f"{BEHIND} untrained network: MAP@R is 57.9 %, and 62.7 % before "),
        (FROZEN, {"frozen": 0.9, "after": 0.8}, "The head is behind the frozen trunk: "),
        ((*FROZEN, "model.embedder=none"), {"frozen": 0.9, "after": 0.8}, ""),  # nothing is learned
        (
            (*FROZEN, "model.embedder=pca"),
            {"frozen": 0.9, "after": 0.8},
            "The frozen trunk, PCA is behind the frozen trunk: Recall@1 is 80.0 %, and 90.0 % without whitening.",
        ),
    ],
)
def test_a_network_behind_its_start_is_named(overrides, recalls, text):
    recipe = load_recipe("cbml/digits", typed(overrides))
    found = setback(recipe, {phase: {"recall_at_1": value, "map_at_r": 1 - value} for phase, value in recalls.items()})
    assert found.startswith(text)
    assert bool(found) is bool(text)


def test_a_network_that_is_not_compared_is_named():
    def said(*overrides):
        settings = typed([*overrides, "model.trunk.weights=some.pth"])
        (recipe,) = load_recipes("cbml/digits", settings, check=False).values()
        return verdict(recipe, {"after": {"recall_at_1": 0.5, "map_at_r": 0.4}}, Path("run"))

    quick = "evaluation.baselines=false"
    assert said(quick).startswith("The tests before training were skipped, so the network may be worse than ")
    assert said(quick, "model.freeze=trunk", "model.embedder=none") == said() == ""


@pytest.mark.parametrize(
    ("recalls", "text"),
    [
        (
            {"frozen": 0.3, "before": 0.2, "head": 0.4, "after": 0.5},
            "Training the whole network has paid: Recall@1 is 50.0 % after it; head, trunk frozen 40.0 %, frozen trunk "
            "30.0 %.",
        ),
        ({"blocks": 0.4, "after": 0.4}, "Training the whole network has added nothing: Recall@1 is 40.0 % after it; "),
        (
            {"frozen": 0.3, "before": 0.2, "blocks": 0.4, "after": 0.35},
            f"{BEHIND} last blocks: Recall@1 is 35.0 %, and 40.0 % before the whole network trained. Train without its "
            "last stage (in pml-ext fit, without --fine-tune) to keep that.",
        ),
        (
            {"frozen": 0.3, "pca": 0.6, "before": 0.2, "head": 0.4, "after": 0.5},
            f"{BEHIND} frozen trunk, PCA: Recall@1 is 50.0 %, and 60.0 %",
        ),
        (
            {"frozen": 0.6, "before": 0.2, "head": 0.4, "after": 0.5},
            f"{BEHIND} frozen trunk: Recall@1 is 50.0 %, and 60.0 % before training.",
        ),
    ],
)
def test_what_the_whole_network_adds_is_said(recalls, text):
    metrics = {phase: {"recall_at_1": value} for phase, value in recalls.items()}
    assert verdict(load_recipe("cbml/digits"), metrics, Path("run")).startswith(text)


def test_pairs_behind_the_untrained_head_are_named():
    (recipe,) = load_recipes(
        "fit/vectors", {"data.name": "pairs:mine.csv", "data.vectors": "a.npz"}, check=False
    ).values()
    phases = {"raw": {"verification_roc_auc": 0.9}, "after": {"verification_roc_auc": 0.8}}
    text = "The trained head is behind the raw vectors: ROC AUC of pairs is 80.0 %, and 90.0 % before training."
    assert setback(recipe, phases).startswith(text.replace("trained head", "head"))


def test_features_ahead_of_the_embeddings_are_told():
    phases = {"after": {"recall_at_1": 0.5}, "features": {"recall_at_1": 0.6}}
    recipe = load_recipe("cbml/digits", {"data.name": "folder:my photos"})

    def told(phases):
        return better_features(phases, Path("a run"), recipe)

    assert told(phases) == (
        "The features before the head are better than the embeddings: Recall@1 is 60.0 % instead of 50.0 %. "
        "To search by them, type: pml-ext index 'a run' 'my photos' --by features"
    )
    assert told({**phases, "after": {"recall_at_1": 0.6}}) == ""
    assert told({"after": {"recall_at_1": 0.5}}) == ""
    one_fell = {"after": {"recall_at_1": 0.6, "map_at_r": 0.2}, "features": {"recall_at_1": 0.5, "map_at_r": 0.3}}
    assert told(one_fell).endswith("MAP@R is 30.0 % instead of 20.0 %. To search by them, type: "
                                   "pml-ext index 'a run' 'my photos' --by features")  # fmt: skip

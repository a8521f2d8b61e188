"""The phases of a run whose metrics it reports."""

from .. import networks
from .losses import build_loss, loss_context, placeholder_classes
from .schema import Recipe, cut_of


def trains_pretrained_trunk(recipe: Recipe) -> bool:
    """Return whether a run trains a pretrained trunk and an embedder."""
    model = recipe.model
    trains = model.freeze != "trunk" and model.embedder != "none"
    return trains and networks.is_pretrained(model.trunk.settings)


def stage_before_whole(recipe: Recipe) -> tuple[str, int] | None:
    """Return phase and last epoch of the stages before the whole trunk trains, or None.

    The phase is ``"head"`` for a frozen trunk, ``"blocks"`` if its last blocks train.
    """
    if not trains_pretrained_trunk(recipe) or recipe.model.freeze != "none":
        return None
    epoch = 0
    phase = None
    for stage in recipe.all_stages():
        cut = cut_of(stage.freeze)
        if stage.freeze == "none":
            break
        if stage.freeze == "trunk" or (cut is not None and cut.until == networks.HEAD):
            phase = phase or "head"
        else:
            phase = "blocks"
        epoch += stage.epochs
    return None if phase is None else (phase, epoch)


def reported_phases(recipe: Recipe) -> list[str]:
    """Return the phases that a run reports: ``"after"``, ``"raw"`` ..."""
    from pml_ext.evaluation import learned_metric

    table = recipe.evaluation
    closed_forms = ["pca", "within_class"] if recipe.data.labels == "given" else ["pca"]
    phases = ["after"]  # after training
    if recipe.model.refit != "none":
        phases.append("trained_head")
    if trains_pretrained_trunk(recipe) or recipe.model.refit != "none":
        phases.append("features")
    phases += [f"first_{size}" for size in recipe.loss.nested[:-1]]
    if table.training_images:
        phases.append("training")
    if table.baselines:
        phases += ["raw", "before"]
        if recipe.model.takes_vectors:
            phases += closed_forms
        elif recipe.model.freeze == "trunk" or networks.is_pretrained(recipe.model.trunk.settings):
            phases += ["frozen", *closed_forms]
        earlier = stage_before_whole(recipe)
        if earlier is not None:
            phases.append(earlier[0])
    # Only a loss that is built shows whether it, its miner or its regularizer has a learned metric.
    context = loss_context(recipe, [0, 1], placeholder_classes(recipe.data))
    for stage in recipe.all_stages():
        loss, miner = build_loss(stage.loss, context)
        modules = [*loss.modules(), *(miner.modules() if miner is not None else ())]
        if learned_metric(modules) is not None:
            phases.append("learned_metric")
            if table.shortlist:
                phases.append("shortlist")
            break
    return phases

"""Angular loss: Wang et al., 2017."""

from pml_ext.plugin import Component, Paper, hookimpl, packaged

WANG_2017 = Paper(
    title="Deep Metric Learning with Angular Loss",
    authors="Wang et al.",
    year=2017,
    url="https://arxiv.org/abs/1708.01682",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The four losses."""
    return [
        Component(
            "pml_ext_angular.losses:AngularLoss",
            name="angular",
            paper=WANG_2017,
            summary="Bound on the angle at the negatives of a pair, as a log-sum-exp over them, Eq. (8)",
        ),
        Component(
            "pml_ext_angular.losses:AngularTripletLoss",
            name="angular-triplet",
            paper=WANG_2017,
            summary="Angular hinge over triplets, Eq. (6)",
        ),
        Component(
            "pml_ext_angular.losses:NPairLoss",
            name="n-pair",
            paper=WANG_2017,
            summary="The N-pair loss in the form of Wang et al., Eq. (10)",
        ),
        Component(
            "pml_ext_angular.losses:NPairAngularLoss",
            name="n-pair-angular",
            paper=WANG_2017,
            summary="Weighted sum of the N-pair and the angular loss, Eq. (9)",
        ),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)

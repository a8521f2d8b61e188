"""The metric variance constraint as a regularizer."""

from pml_ext.testing import check_component
from pml_ext_cbml.regularizers import MetricVarianceRegularizer

from . import loops


def test_the_regularizer_is_equation_29():
    def reference(embeddings, labels, gamma=0.2, reduction="mean", detach_target=False):
        settings = {"mvc_gamma": gamma, "mvc_reduction": reduction, "detach_target": detach_target}
        terms = loops.anchor_terms(embeddings, loops.pairs_from_labels(labels), **settings)
        return sum(variance for _, _, variance in terms) / len(labels)

    settings = {"reduction": ["mean", "sum"], "gamma": [0.0, 0.2, 1.0], "detach_target": [False, True]}
    checks = ["check_reference", "check_settings"]
    check_component(MetricVarianceRegularizer, reference=reference, settings=settings, checks=checks)

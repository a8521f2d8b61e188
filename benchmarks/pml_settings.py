"""Check PML's losses under ten settings each: ``python -m benchmarks.pml_settings [NAME ...]``.

Prints, per loss, the checks that fail under some settings and not under the defaults. The results stand in
``docs/pml-losses.md``; ``tests/testing/test_kit.py`` runs a selection.
"""

import functools
import sys
import warnings

from pytorch_metric_learning.regularizers import LpRegularizer, RegularFaceRegularizer

from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.testing import check_component

# By class, five values of each of two settings, or ten of one; what is not here has no settings of its own.
VALUES = {
    "angular": {"alpha": [1, 5, 10, 20, 30, 40, 45, 50, 60, 80]},
    "arcface": {"margin": [0.1, 1, 10, 28.6, 60], "scale": [1, 8, 30, 64, 128]},
    "circle": {"m": [0.0, 0.1, 0.25, 0.4, 0.6], "gamma": [1, 16, 80, 256, 512]},
    "contrastive": {"pos_margin": [0, 0.1, 0.3, 0.5, 1.0], "neg_margin": [0.05, 0.1, 0.5, 1, 2]},
    "cosface": {"margin": [0.0, 0.1, 0.35, 0.6, 1], "scale": [1, 8, 30, 64, 128]},
    "fast-ap": {"num_bins": [2, 3, 5, 8, 10, 15, 20, 30, 50, 100]},
    "generalized-lifted-structure": {"neg_margin": [0.05, 0.2, 0.5, 1, 2], "pos_margin": [0, 0.1, 0.3, 0.5, 1]},
    "histogram": {"n_bins": [5, 10, 20, 30, 50, 80, 100, 150, 200, 300]},
    "instance": {"gamma": [1, 2, 4, 8, 16, 32, 64, 100, 128, 200]},
    "intra-pair-variance": {"pos_eps": [0.001, 0.01, 0.05, 0.1, 0.3], "neg_eps": [0.001, 0.01, 0.05, 0.1, 0.3]},
    "large-margin-softmax": {"margin": [1, 2, 3, 4, 5], "scale": [1, 2, 4, 8, 16]},
    "lifted-structure": {"neg_margin": [0.05, 0.2, 0.5, 1, 2], "pos_margin": [0, 0.1, 0.3, 0.5, 1]},
    "margin": {"margin": [0.01, 0.05, 0.2, 0.5, 1], "nu": [0, 0.01, 0.1, 0.5, 1]},
    "multi-similarity": {"alpha": [0.5, 1, 2, 5, 20], "base": [0.0, 0.25, 0.5, 0.75, 1.0]},
    "nca": {"softmax_scale": [0.1, 0.5, 1, 2, 3, 5, 8, 10, 20, 50]},
    "normalized-softmax": {"temperature": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]},
    "ntxent": {"temperature": [0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2, 5]},
    "pnp": {"b": [0.5, 1, 2, 3, 4], "alpha": [1, 2, 4, 8, 16]},
    "proxy-anchor": {"margin": [0.0, 0.05, 0.1, 0.3, 0.5], "alpha": [1, 8, 32, 64, 100]},
    "proxy-nca": {"softmax_scale": [0.1, 0.5, 1, 2, 3, 5, 8, 10, 20, 50]},
    "signal-to-noise-ratio-contrastive": {"pos_margin": [0, 0.1, 0.3, 0.5, 1.0], "neg_margin": [0.05, 0.1, 0.5, 1, 2]},
    "soft-triple": {"la": [1, 5, 10, 20, 40], "gamma": [0.05, 0.1, 0.3, 0.6, 1]},
    "sphereface": {"margin": [1, 2, 3, 4, 5], "scale": [1, 2, 4, 8, 16]},
    "sub-center-arcface": {"margin": [0.1, 1, 10, 28.6, 60], "sub_centers": [1, 2, 3, 4, 5]},
    "supcon": {"temperature": [0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2, 5]},
    "threshold-consistent-margin": {"lambda_plus": [0.1, 0.5, 1, 2, 5], "lambda_minus": [0.1, 0.5, 1, 2, 5]},
    "triplet-margin": {"margin": [0.001, 0.01, 0.05, 0.2, 1], "swap": [False, True]},
    "tuplet-margin": {"margin": [0.5, 1, 5.73, 10, 30], "scale": [1, 8, 32, 64, 128]},
    "vicreg": {"invariance_lambda": [1, 5, 25, 50, 100], "variance_mu": [1, 5, 25, 50, 100]},
}


def settings(name, cls):
    """Ten tables of settings: each value of the one with a value of the other, every second with PML's regularizers."""
    values = VALUES[name]
    one, *rest = values
    tables = [{one: value} for value in values[one]]
    for other in rest:
        count = len(values[other])
        tables += [
            {one: values[one][(2 * n + 1) % len(values[one])], other: values[other][n % count]} for n in range(5)
        ]
    for table in tables[1:10:2]:
        table["embedding_regularizer"] = LpRegularizer()
        if "weight_regularizer" in registry.settings_of(cls):
            table["weight_regularizer"] = RegularFaceRegularizer()
    return tables[:10]


def failing(component):
    """The checks that a component fails, with what they say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {r.check: r.text for r in check_component(component, fast=True, on_fail=None) if r.fails}


def main(names):
    """Prints what fails under settings and not by default."""
    for name in names or VALUES:
        cls = registry.get(f"pml/{name}", "loss").cls
        own = failing(cls)
        print(f"{name}: {', '.join(own) or 'nothing'}", flush=True)
        for table in settings(name, cls):
            try:
                more = failing(functools.partial(cls, **table))
            except ConfigError as error:
                print(f"  {table}: {error}")
                continue
            for check in more.keys() - own.keys():
                print(f"  {table}: {check}: {more[check]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

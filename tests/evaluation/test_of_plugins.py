"""Metrics of plugins in the calculator and in a run."""

import pytest
import torch

from pml_ext import RetrievalAccuracyCalculator
from pml_ext.errors import PluginError, PluginWarning
from pml_ext.evaluation import (
    kmeans,
)
from pml_ext_train.launch.launch import train

from ..overrides import typed
from .points import data, never, ranked

PLUGIN = """
    from pml_ext.plugin import hookimpl

    def calculate_farthest(knn_labels, query_labels, not_lone_query_mask, **kwargs):
        right = knn_labels[:, -1] == query_labels
        return right[not_lone_query_mask].float().mean()

    def calculate_largest(cluster_labels, **kwargs):
        return cluster_labels.bincount().max() / len(cluster_labels)

    def calculate_nmi(**kwargs):
        return 2.0

    def calculate_broken(knn_labels, **kwargs):
        return 1 / 0

    @hookimpl
    def pml_ext_metrics():
        return {METRICS}
"""


BOTH = '{"farthest": calculate_farthest, "largest": calculate_largest}'


@pytest.mark.usefixtures("isolated_registry")
def test_a_plugins_metrics_are_computed_as_pmls(install_plugin):
    install_plugin("far", PLUGIN.replace("{METRICS}", BOTH))
    points, labels = data()
    found = RetrievalAccuracyCalculator(k=3, exclude=("AMI",)).get_accuracy(points, labels)
    alone = RetrievalAccuracyCalculator(include=("farthest",), kmeans_func=never, k=3)
    assert alone.get_accuracy(points, labels) == {"farthest": found["farthest"]}
    third = torch.tensor([row[2] for row in ranked(points, points, True)])
    assert float(found["farthest"]) == pytest.approx(float((labels[third] == labels).float().mean()))
    assert float(found["largest"]) == pytest.approx(int(kmeans(points, 7).bincount().max()) / 60)


@pytest.mark.usefixtures("isolated_registry")
def test_a_plugins_metric_is_named_where_it_fails(install_plugin):
    install_plugin("far", PLUGIN.replace("{METRICS}", '{"nmi": calculate_nmi, "broken": calculate_broken}'))
    with pytest.warns(PluginWarning, match="the metric 'nmi' of the plugin 'far' is left out: the name is taken"):
        calculator = RetrievalAccuracyCalculator(include=("broken",))
    with pytest.raises(PluginError, match="the metric 'broken' of the plugin 'far' failed: ZeroDivisionError"):
        calculator.get_accuracy(*data())
    texts = []
    assert calculator.evaluate(*data(), on_failure=texts.append).accuracies == {}
    assert [text.partition(":")[0] for text in texts] == ["the metric 'broken' of the plugin 'far' failed"]


@pytest.mark.usefixtures("isolated_registry")
def test_plugin_metric_in_a_run_chooses_its_epoch(install_plugin, pml_ext_command, tmp_path):
    install_plugin("far", PLUGIN.replace("{METRICS}", BOTH))
    quick = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=2", "model.trunk.width=8")
    quick += ("evaluation.validation=0.3", "evaluation.select=largest", "sampler.batch_size=56")
    metrics = train("cbml/digits", out=tmp_path / "run", overrides=typed(quick), device="cpu")[0]
    assert list(metrics["after"])[-6:] == ["farthest", "nmi", "nmi_majority", "f1", "purity", "largest"]
    assert 0 < metrics["after"]["largest"] < 1
    assert 0 < metrics["raw"]["farthest"] < 1
    done = pml_ext_command("compare", tmp_path / "run", "--metric", "farthest", "--json")
    assert done.returncode == 0, done.stderr
    assert str(metrics["after"]["farthest"])[:5] in done.stdout
    assert "farthest" in (tmp_path / "run" / "report.html").read_text()

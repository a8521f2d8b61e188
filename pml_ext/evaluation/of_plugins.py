"""Metrics of plugins; an error names the metric and its plugin."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from .. import registry
from ..errors import PluginError, PluginWarning, one_line, shortened
from ..pml import AccuracyCalculator
from .metrics import metrics_of

PREFIX = "calculate_"  # of a metric's method in PML's calculator


def plugin_metrics(calculator: Any = None) -> dict[str, Callable[..., Any]]:
    """The metrics of plugins by name; a warning reports names already in use."""
    if calculator is None:
        calculator = AccuracyCalculator
    taken = {metric.name for metric in metrics_of()}
    metrics = {}
    for name, function in registry.values("metric").items():
        if name in taken or hasattr(calculator, PREFIX + name):
            plugin, _ = registry.find("metric", name)
            text = f"the metric {name!r} of the plugin {plugin!r} is left out: the name is taken"
            warnings.warn(text, PluginWarning, stacklevel=3)
        else:
            metrics[name] = function
    return metrics


def needs_clusters(metric: Callable[..., Any]) -> bool:
    """Whether a plugin's metric needs ``cluster_labels``."""
    return "cluster_labels" in inspect.signature(metric).parameters


def value_of_plugin(name: str, function: Callable[..., Any], **arguments: Any) -> Any:
    """Compute a plugin's metric from copies of the arguments; errors name metric and plugin."""
    given = tree_map_only(Tensor, Tensor.clone, arguments)
    try:
        value = function(**given)
        if not _is_number(value):
            raise TypeError(f"it returned {shortened(repr(value), 100)}, wanted a number")
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        plugin, _ = registry.find("metric", name)
        problem = f"the metric {name!r} of the plugin {plugin!r} failed: {one_line(error)}"
        raise PluginError(f"{problem} (its hook is pml_ext_metrics; PML_EXT_BLOCK={plugin} leaves it out)") from error
    return value


def _is_number(value: Any) -> bool:
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return isinstance(value, (int, float))

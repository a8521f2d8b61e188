"""A trunk cut before a block: a frozen first part, and a rest that trains.

``torch.fx`` traces the calls of ``forward``. Both parts share parameters and modes with the trunk.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from pml_ext.errors import ConfigError, first_of, one_line, unknown

from .modes import evaluation_mode
from .trunks import RepeatedGray, unwrapped_trunk

HEAD = "head"  # cut after the whole trunk


class CutTrunk(NamedTuple):
    """The two parts of a trunk; its features are ``rest(stem(images))``."""

    stem: nn.Module  # images [B, C, S, S] to activations [B, ...]
    rest: nn.Module  # activations to features [B, F]


def cut_before(trunk: nn.Module, block: str) -> CutTrunk:
    """Cut a trunk before a block, named by its module, such as ``"blocks.5"`` or ``"layer4"``.

    Before ``"head"``, the first part is the whole trunk, and the rest the identity. ConfigError for an unknown block, a
    ``forward`` that cannot be traced, or more than one tensor at the cut.
    """
    if block == HEAD:
        return CutTrunk(trunk, nn.Identity())
    model = unwrapped_trunk(trunk)
    graph = _trace(model, block)
    nodes = list(graph.nodes)
    calls = [place for place, node in enumerate(nodes) if node.op == "call_module" and node.target == block]
    if len(calls) != 1:
        raise _refusal(trunk, block, f"{block} is not called once for a batch of images")
    (first,) = calls
    activation = _only_activation(trunk, block, nodes, first)
    stem: nn.Module = fx.GraphModule(model, _graph_until(activation, nodes, first), "Stem")
    rest = fx.GraphModule(model, _graph_from(activation, nodes, first), "Rest")
    if not set(stem.parameters()).isdisjoint(rest.parameters()):
        raise _refusal(trunk, block, "the parts before and after it share parameters")
    if model is not trunk:
        stem = nn.Sequential(RepeatedGray(), stem)
    return CutTrunk(stem, rest)


def frozen_stem(trunk: nn.Module, block: str) -> CutTrunk:
    """Cut a trunk, freeze its first part, and make the rest trainable."""
    parts = cut_before(trunk, block)
    parts.stem.requires_grad_(False)
    parts.rest.requires_grad_(True)
    return parts


class _AncestorTracer(fx.Tracer):
    """Traces into the modules that contain a block, and calls all others."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self._block = block

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is called without tracing into it."""
        return not self._block.startswith(f"{module_qualified_name}.")


def _trace(model: nn.Module, block: str) -> fx.Graph:
    """Calls of a model's ``forward``; ConfigError for an unknown block, or if tracing fails."""
    names = [name for name, _ in model.named_modules() if name]
    if block not in names:
        raise ConfigError(f"model.freeze.until: {unknown('block of the trunk', block, names)}")
    try:
        with evaluation_mode(model):
            graph = _AncestorTracer(block).trace(model, _defaults(model))
            model.train()
            in_training = _AncestorTracer(block).trace(model, _defaults(model))
    except Exception as error:  # tracing runs the model's own code
        raise _refusal(model, block, f"its forward cannot be traced ({one_line(error)})") from None
    if graph.python_code("self").src != in_training.python_code("self").src:
        raise _refusal(model, block, "its forward itself, outside its blocks, differs in training")
    return graph


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Arguments of a model's ``forward`` that have defaults, such as masks."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _only_activation(trunk: nn.Module, block: str, nodes: list[fx.Node], first: int) -> fx.Node:
    after = nodes[first:]
    needed = []
    for node in after:
        for argument in node.all_input_nodes:
            is_passed_on = argument not in after and argument.op != "get_attr"
            if is_passed_on and argument not in needed:
                needed.append(argument)
    if len(needed) == 1 and needed[0].op != "placeholder":
        return needed[0]
    if len(needed) == 1:
        raise _refusal(trunk, block, "it is the first of the trunk, so nothing would be frozen")
    names = first_of([node.name for node in needed], 4)
    raise _refusal(trunk, block, f"{len(needed)} values reach it ({names}), not one tensor")


def _graph_until(activation: fx.Node, nodes: list[fx.Node], first: int) -> fx.Graph:
    """The graph from images to the activation, with calls that work in place."""
    before = nodes[:first]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in before:
        is_for_rest = node.op == "get_attr" and not any(user in before for user in node.users)
        if not is_for_rest:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[activation])
    return graph


def _graph_from(activation: fx.Node, nodes: list[fx.Node], first: int) -> fx.Graph:
    graph = fx.Graph()
    copies = {activation: graph.placeholder("activation")}
    for node in nodes[first:]:
        for argument in node.all_input_nodes:
            if argument not in copies:  # a parameter of a module that contains the block
                copies[argument] = graph.node_copy(argument)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph


def _refusal(trunk: nn.Module, block: str, reason: str) -> ConfigError:
    model = type(unwrapped_trunk(trunk)).__name__
    return ConfigError(
        f"model.freeze.until: {model} cannot be cut before {block}: {reason}. Choose another block, or "
        "freeze = ['NAME', ...], which keeps no activations"
    )


def activation_shape(stem: nn.Module, channels: int, image_size: int, device: torch.device) -> torch.Size:
    """Shape of an image's activations, measured on an image of zeros."""
    with evaluation_mode(stem), torch.no_grad():
        output: Tensor = stem(torch.zeros(1, channels, image_size, image_size, device=device))
    return output.shape[1:]

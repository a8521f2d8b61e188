"""The checks, by kind of component and in the order in which they run.

Each has the name of what it protects, and a docstring and messages that say why it matters.
"""

from __future__ import annotations

from collections.abc import Callable

from ..subject import Subject
from . import contract, cost, devices, large, objects, others, reference, surroundings, values
from .contract import check_call_forms

__all__ = ["CHECKS", "COMPARED", "Check", "check_call_forms"]

Check = Callable[[Subject], str | None]

_LOSS: list[Check] = [
    others.check_capabilities,
    check_call_forms,
    contract.check_sub_loss_names,
    contract.check_reducers,
    contract.check_indices_belong_to_values,
    contract.check_labels_are_used,
    contract.check_indices_tuple_of_pairs,
    contract.check_indices_tuple_of_triplets,
    contract.check_references,
    contract.check_references_of_equal_length,
    contract.check_parameters_get_gradients,
    values.check_inputs_unchanged,
    values.check_dtypes,
    values.check_autocast,
    devices.check_devices,
    values.check_batch_without_positives,
    values.check_batch_without_negatives,
    values.check_ragged_classes,
    values.check_duplicates,
    values.check_collapsed_embeddings,
    values.check_gradients,
    values.check_order_does_not_matter,
    values.check_names_of_classes,
    values.check_determinism,
    objects.check_state_dict,
    objects.check_tensors_are_registered,
    objects.check_eval_keeps_state,
    objects.check_pickle,
    objects.check_compile,
    objects.check_fullgraph,
    objects.check_torch_func,
    objects.check_forward_mode,
    cost.check_memory_growth,
    cost.check_saved_bytes,
    cost.check_no_loop_over_anchors,
    cost.check_no_host_sync,
    large.check_tiles,
    large.check_gradient_caching,
    surroundings.check_pml_trainer,
    surroundings.check_hook_container,
    surroundings.check_cross_batch_memory,
    surroundings.check_two_processes,
]

CHECKS: dict[str, list[Check]] = {
    "loss": _LOSS,
    "miner": [
        others.check_capabilities,
        others.check_mined_indices,
        others.check_mined_references,
        others.check_mining_is_deterministic,
        others.check_mining_has_no_gradient,
        others.check_mining_of_degenerate_batches,
        others.check_mining_dtypes,
        values.check_names_of_classes,
        values.check_inputs_unchanged,
        objects.check_tensors_are_registered,
        devices.check_devices,
        cost.check_no_loop_over_anchors,
        large.check_tiles,
        surroundings.check_hook_container,
        others.check_can_be_pickled,
    ],
    "regularizer": [
        others.check_capabilities,
        others.check_regularizer_value,
        others.check_regularizer_dtypes,
        others.check_regularizer_of_degenerate_batches,
        others.check_regularizer_order_does_not_matter,
        others.check_beside_a_loss,
        contract.check_parameters_get_gradients,
        values.check_names_of_classes,
        values.check_determinism,
        values.check_inputs_unchanged,
        objects.check_tensors_are_registered,
        devices.check_devices,
        objects.check_eval_keeps_state,
        others.check_can_be_pickled,
        objects.check_compile,
        objects.check_fullgraph,
        objects.check_torch_func,
        objects.check_forward_mode,
        cost.check_saved_bytes,
        cost.check_no_loop_over_anchors,
        cost.check_no_host_sync,
        large.check_tiles,
        surroundings.check_hook_container,
    ],
    "distance": [
        others.check_capabilities,
        others.check_distance_matrix,
        others.check_distance_of_equal_points,
        others.check_distance_dtypes,
        values.check_inputs_unchanged,
        objects.check_tensors_are_registered,
        devices.check_devices,
        cost.check_saved_bytes,
        cost.check_no_loop_over_anchors,
        others.check_can_be_pickled,
    ],
    "sampler": [
        others.check_sampler,
        others.check_sampler_batches,
        others.check_sampler_length,
        others.check_sampler_state,
    ],
    "reducer": [others.check_reducer, others.check_can_be_pickled],
}

COMPARED: list[Check] = [reference.check_reference, reference.check_settings]  # where the author gives something for it

"""What ``pml_ext`` leans on in pytorch-metric-learning: with another version of it, what fails here is what changed."""

import importlib
import inspect

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers

from pml_ext import pml

EMBEDDINGS = torch.eye(4, requires_grad=True)
LABELS = torch.tensor([0, 0, 1, 1])


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("losses", "BaseMetricLossFunction BaseLossWrapper MultipleLosses SelfSupervisedLoss CrossBatchMemory"),
        ("miners", "BaseMiner EmbeddingsAlreadyPackagedAsTriplets MultiSimilarityMiner"),
        ("regularizers", "BaseRegularizer LpRegularizer"),
        ("distances", "BaseDistance CosineSimilarity DotProductSimilarity LpDistance"),
        ("reducers", "BaseReducer MultipleReducers DivisorReducer MeanReducer AvgNonZeroReducer"),
        ("samplers", "MPerClassSampler"),
        ("utils.inference", "CustomKNN FaissKNN FaissKMeans"),
        ("utils.module_with_records", "ModuleWithRecords"),
        ("utils.loss_and_miner_utils", "convert_to_pairs convert_to_triplets get_all_pairs_indices"),
        ("utils.accuracy_calculator", "AccuracyCalculator EQUALITY"),
        ("utils.logging_presets", "HookContainer"),
        ("trainers", "MetricLossOnly"),
        ("testers", "GlobalEmbeddingSpaceTester"),
    ],
)
def test_names_stand_where_we_take_them_from(module, names):
    found = importlib.import_module(f"pytorch_metric_learning.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_the_door_has_what_it_says():
    assert [name for name in pml.__all__ if not hasattr(pml, name)] == []


def test_a_losss_forward_and_compute_loss_have_these_arguments_in_this_order():
    wanted = ["self", "embeddings", "labels", "indices_tuple", "ref_emb", "ref_labels"]
    assert parameters(losses.BaseMetricLossFunction.forward) == wanted
    assert parameters(losses.ContrastiveLoss.compute_loss) == wanted


def test_the_batch_itself_is_passed_as_its_own_reference():
    class Loss(losses.BaseMetricLossFunction):
        def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
            self.alone = ref_emb is embeddings and ref_labels is labels
            return self.zero_losses()

    loss = Loss()
    assert loss(EMBEDDINGS, LABELS) == 0
    assert loss.alone
    loss(EMBEDDINGS, LABELS, ref_emb=EMBEDDINGS.clone(), ref_labels=LABELS.clone())
    assert not loss.alone


def test_a_losss_defaults_come_from_these_hooks_and_these_keywords():
    loss = losses.BaseMetricLossFunction
    assert callable(loss.get_default_distance)
    assert callable(loss.get_default_reducer)
    given = losses.ContrastiveLoss(
        distance=distances.LpDistance(),
        reducer=reducers.SumReducer(),
        collect_stats=True,
        embedding_regularizer=regularizers.LpRegularizer(),
        embedding_reg_weight=0.5,
    )
    assert (type(given.distance), given.collect_stats, given.embedding_reg_weight) == (distances.LpDistance, True, 0.5)


def test_nothing_to_compute_is_a_term_of_0_that_reducers_make_a_zero_with_a_graph_of():
    class Loss(losses.BaseMetricLossFunction):
        def compute_loss(self, *_):
            return {"loss": {"losses": 0, "indices": None, "reduction_type": "already_reduced"}}

    assert Loss().zero_losses() == Loss().compute_loss()
    value = Loss()(EMBEDDINGS, LABELS)
    assert value == 0
    assert value.requires_grad


@pytest.mark.parametrize(
    ("kind", "indices"),
    [
        ("element", torch.arange(2)),
        ("pos_pair", (torch.arange(2), torch.arange(2))),
        ("neg_pair", (torch.arange(2), torch.arange(2))),
        ("triplet", (torch.arange(2), torch.arange(2), torch.arange(2))),
    ],
)
def test_a_term_has_values_indices_a_kind_and_perhaps_a_divisor(kind, indices):
    values = torch.tensor([1.0, 3.0])
    term = {"loss": {"losses": values, "indices": indices, "reduction_type": kind, "divisor": 8}}
    assert reducers.MeanReducer()(term, EMBEDDINGS, LABELS) == 2
    assert reducers.DivisorReducer()(term, EMBEDDINGS, LABELS) == 0.5


def test_a_reducer_of_ours_overrides_these():
    names = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")
    for name in names:
        assert parameters(getattr(reducers.BaseReducer, f"{name}_reduction"))[:5] == [
            "self",
            "losses",
            "loss_indices",
            "embeddings",
            "labels",
        ]
    assert callable(reducers.BaseReducer.unpack_loss_info)


def test_a_distance_has_these():
    distance = distances.CosineSimilarity()
    assert (distance.is_inverted, distances.LpDistance().is_inverted) == (True, False)
    assert (distance.p, distance.power, distance.normalize_embeddings) == (2, 1, True)
    assert parameters(distances.BaseDistance.compute_mat) == ["self", "query_emb", "ref_emb"]
    assert callable(distance.maybe_normalize)
    assert distance(EMBEDDINGS).shape == (4, 4)
    assert distance(EMBEDDINGS, EMBEDDINGS[:3]).shape == (4, 3)


def test_a_miner_takes_references_third_and_gives_three_or_four_index_tensors():
    assert parameters(miners.BaseMiner.forward) == ["self", "embeddings", "labels", "ref_emb", "ref_labels"]
    assert parameters(miners.BaseMiner.mine) == ["self", "embeddings", "labels", "ref_emb", "ref_labels"]
    assert len(miners.MultiSimilarityMiner()(EMBEDDINGS, LABELS)) == 4
    assert len(miners.TripletMarginMiner()(EMBEDDINGS, LABELS)) == 3


def test_a_regularizer_sees_embeddings_alone():
    assert parameters(regularizers.BaseRegularizer.forward) == ["self", "x"]
    assert parameters(regularizers.LpRegularizer.compute_loss) == ["self", "embeddings"]


def test_statistics_are_recorded_by_these():
    module = pml.ModuleWithRecords(collect_stats=True)
    module.add_to_recordable_attributes(name="fixed", is_stat=False)
    module.add_to_recordable_attributes(list_of_names=["seen"], is_stat=True)
    assert (module._record_these, module._record_these_stats) == (["fixed"], ["seen"])
    module.seen = 3
    module.reset_stats()
    assert module.seen == 0


def test_sub_losses_have_names():
    assert losses.MultipleLosses([losses.ContrastiveLoss()]).losses is not None
    assert "loss" in losses.MultiSimilarityLoss().sub_loss_names()


def test_wrappers_ask_for_support_by_a_method_that_ours_replace():
    assert callable(losses.BaseLossWrapper.check_loss_support)
    assert "ContrastiveLoss" in losses.SelfSupervisedLoss.supported_losses()


def test_a_memorys_saved_state_has_these_keys():
    memory = losses.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=4, memory_size=8)
    memory(EMBEDDINGS.detach(), LABELS)
    assert {"embedding_memory", "label_memory"} <= set(memory.state_dict())
    assert (memory.queue_idx, memory.has_been_filled) == (4, False)


def test_a_search_leaves_the_query_out_by_its_index():
    twins = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    _, indices = pml.CustomKNN(distances.LpDistance())(twins, 1, twins, True)
    assert indices[:2, 0].tolist() == [1, 0]


def test_the_calculator_is_extended_by_these():
    calculator = pml.AccuracyCalculator(include=("precision_at_1",), k=1)
    assert calculator.get_accuracy(torch.eye(4), LABELS, torch.eye(4), LABELS, True)["precision_at_1"] in (
        0.0,
        0.5,
        1.0,
    )
    for name in ("requires_knn", "requires_clustering", "get_accuracy", "calculate_precision_at_1"):
        assert callable(getattr(calculator, name))


def test_batches_of_m_per_class_are_drawn_by_these_arguments():
    assert parameters(samplers.MPerClassSampler.__init__) == [
        "self",
        "labels",
        "m",
        "batch_size",
        "length_before_new_iter",
    ]

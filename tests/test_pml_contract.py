"""What pml_ext takes for granted of pytorch-metric-learning, for the version that it takes and for the next.

Each test says what a major version does. Where those of 2 and 3 differ, ``pml_ext.pml`` has to change, and with it the
range in ``pyproject.toml``. What 3 does is from its documentation. Tests without a major version ask what its
documentation leaves open, and what the layer and its plugins use: they run on whatever is installed, and what fails
with 3 is the list of what its base classes lack.
"""

import importlib.metadata
import inspect
import pkgutil

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers

from pml_ext.settings import settings_of

INSTALLED = int(importlib.metadata.version("pytorch-metric-learning").partition(".")[0])
X = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
Y = torch.tensor([0, 0, 1, 1])


@pytest.fixture(params=[2, 3])
def major(request):
    """A major version, if it is the installed one."""
    if request.param != INSTALLED:
        pytest.skip(
            f"PML {INSTALLED} is installed, not {request.param}; "
            "no package index has offered PML 3 yet, and it wants Python 3.12 and torch 2.14"
        )
    return request.param


def of_pml(path):
    """What ``module:name`` or ``module:name.name`` is in PML."""
    return pkgutil.resolve_name(f"pytorch_metric_learning.{path}")


def exists(path):
    """Whether ``module:name`` can be imported from PML."""
    try:
        of_pml(path)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    ("path", "since", "until"),
    [
        ("losses:BaseMetricLossFunction", 2, 3),
        ("losses:MultipleLosses", 2, 3),
        ("losses:CrossBatchMemory", 2, 3),
        ("losses:SelfSupervisedLoss", 2, 3),
        ("losses:BaseProxyLoss", 3, 3),
        ("miners:BaseMiner", 2, 3),
        ("reducers:DivisorReducer", 2, 3),
        ("reducers:MultipleReducers", 2, 3),
        ("distances:LpDistance", 2, 3),
        ("losses:BaseLossWrapper", 2, 2),
        ("trainers:MetricLossOnly", 2, 2),
        ("testers:GlobalEmbeddingSpaceTester", 2, 2),
        ("utils.logging_presets:HookContainer", 2, 2),
        ("utils.module_with_records:ModuleWithRecords", 2, 2),
        ("utils.common_functions:list_of_recordable_attributes_list_names", 2, 2),
        ("utils.accuracy_calculator:AccuracyCalculator", 2, 2),
        ("utils.inference:CustomKNN", 2, 2),
        ("utils.inference:FaissKNN", 2, 2),
        ("utils.inference:FaissKMeans", 2, 2),
        ("utils.distributed:DistributedLossWrapper", 2, 2),
        ("utils.loss_and_miner_utils:get_all_pairs_indices", 2, 2),
        ("evaluation:AccuracyCalculator", 3, 3),
        ("evaluation:CustomKNN", 3, 3),
        ("evaluation:FaissKMeans", 3, 3),
        ("evaluation:FaissKNN", 3, 3),
        ("evaluation:RetrievalMetric", 3, 3),
        ("distributed:DistributedLossWrapper", 3, 3),
        ("utils.indexing", 3, 3),
    ],
)
def test_names_are_where_each_version_has_them(path, since, until, major):
    assert exists(path) == (since <= major <= until)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "losses:BaseMetricLossFunction",
            "distance reducer embedding_regularizer embedding_reg_weight collect_stats",
        ),
        ("miners:BaseMiner", "distance collect_stats"),
        ("regularizers:BaseRegularizer", "distance reducer collect_stats"),
        ("distances:BaseDistance", "normalize_embeddings p power is_inverted collect_stats"),
    ],
)
def test_the_settings_of_the_bases(path, names, major):
    assert set(settings_of(of_pml(path))) == (set(names.split()) - ({"collect_stats"} if major == 3 else set()))


RECORDS = "add_to_recordable_attributes reset_stats"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "losses:BaseMetricLossFunction",
            f"zero_losses sub_loss_names add_embedding_regularization_to_loss_dict {RECORDS}",
        ),
        ("miners:BaseMiner", RECORDS),
        ("regularizers:BaseRegularizer", RECORDS),
        ("losses:SelfSupervisedLoss", "supported_losses"),
    ],
)
def test_what_version_3_takes_away_from_the_bases(path, names, major):
    found = [each for each in names.split() if hasattr(of_pml(path), each)]
    assert found == (names.split() if major == 2 else [])


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("miners:BaseMiner", "mine forward"),
        ("regularizers:BaseRegularizer", "compute_loss forward"),
        ("reducers:BaseReducer", "unpack_loss_info element_reduction pos_pair_reduction triplet_reduction forward"),
        ("distances:BaseDistance", "compute_mat pairwise_distance maybe_normalize normalize margin"),
        ("miners:EmbeddingsAlreadyPackagedAsTriplets", "forward"),
    ],
)
def test_bases_have_the_methods_that_we_use(path, names):
    assert [each for each in names.split() if not callable(getattr(of_pml(path), each, None))] == []


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("losses:BaseMetricLossFunction.forward", "embeddings labels indices_tuple ref_emb ref_labels"),
        ("losses:BaseMetricLossFunction.compute_loss", "embeddings labels indices_tuple ref_emb ref_labels"),
        ("miners:BaseMiner.forward", "embeddings labels ref_emb ref_labels"),
        ("miners:BaseMiner.mine", "embeddings labels ref_emb ref_labels"),
        ("regularizers:LpRegularizer.compute_loss", "embeddings"),
        ("reducers:BaseReducer.forward", "loss_dict embeddings labels"),
        ("reducers:BaseReducer.element_reduction", "losses loss_indices embeddings labels"),
        ("distances:BaseDistance.forward", "query_emb ref_emb"),
        ("distances:BaseDistance.compute_mat", "query_emb ref_emb"),
        ("distances:BaseDistance.pairwise_distance", "query_emb ref_emb"),
        ("losses:MultipleLosses.__init__", "losses miners weights"),
        ("losses:SelfSupervisedLoss.__init__", "loss symmetric"),
        ("losses:CrossBatchMemory.__init__", "loss embedding_size memory_size miner"),
        ("losses:CrossBatchMemory.forward", "embeddings labels indices_tuple enqueue_mask"),
    ],
)
def test_arguments_given_by_position_keep_their_order(path, names):
    wanted = names.split()
    assert list(inspect.signature(of_pml(path)).parameters)[1 : 1 + len(wanted)] == wanted


def test_attributes_of_objects_that_are_read():
    """Of reducers for the tiles of a loss, of distances for its matrix, of wrappers for what is inside of them."""
    several = reducers.MultipleReducers({"loss": reducers.SumReducer()})
    assert isinstance(several.reducers["loss"], reducers.SumReducer)
    assert isinstance(several.default_reducer, reducers.MeanReducer)
    assert callable(reducers.PerAnchorReducer().aggregation_func)
    assert isinstance(reducers.PerAnchorReducer().reducer, reducers.MeanReducer)
    assert len(reducers.ClassWeightedReducer(torch.ones(2)).weights) == 2
    assert (distances.CosineSimilarity().is_inverted, distances.LpDistance().is_inverted) == (True, False)
    assert (distances.LpDistance(power=2).power, distances.LpDistance().p) == (2, 2)
    both = losses.MultipleLosses([losses.ContrastiveLoss(), losses.NTXentLoss()], weights=[1, 2])
    assert len(both.losses) == len(both.weights) == 2


def test_what_the_calculator_is_extended_by(major):
    from pml_ext import pml

    inner = ("requires_knn", "requires_clustering", "get_function_dict", "check_primary_metrics")
    settings = inspect.signature(pml.AccuracyCalculator.__init__).parameters
    if major == 2:
        assert all(callable(getattr(pml.AccuracyCalculator, name)) for name in inner)
        assert pml.AccuracyCalculator().original_function_dict
    else:
        assert "custom_metrics" in settings


def test_pml_has_a_version_that_the_door_takes():
    from pml_ext import pml  # here, so that the others run where the door cannot be imported yet

    assert pml.MAJOR == INSTALLED

"""Miners, samplers, distances, regularizers and reducers with one bug each."""

import random

import torch
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext.distances import EuclideanDistance
from pml_ext.plugin import BaseReducer, CosineSimilarity, reduced

from .correct import FewClasses, Hardest, NearNegatives, eye
from .table import plant, planted

ARGUMENTS, DEGENERATE, GLOBALS = "check_arguments", "check_degenerate_batches", "check_globals_unchanged"
MINED, AMONG = "check_mined_indices", "check_mined_references"
PASS, LONG_RUN, STATE = "check_sampler", "check_sampler_in_the_long_run", "check_sampler_state"
DISTANCE, REDUCER = "check_distance", "check_reducer"

# Miners.

plant("ListsTwice", NearNegatives, "lists a pair once by each of two rules", MINED, "listed twice")(
    listed=lambda self, *masks: tuple(torch.cat([i, i[: len(i) // 2]]) for i in NearNegatives.listed(self, *masks))
)
plant("OwnPositiveMined", NearNegatives, "an anchor is its own positive", MINED, "an anchor is its own positive")(
    listed=lambda self, near, far: NearNegatives.listed(self, near | eye(near), far)
)
plant("ReturnsInt32", NearNegatives, "returns int32 indices", MINED, "must be int64 .* got torch.int32")(
    listed=lambda self, *masks: tuple(index.int() for index in NearNegatives.listed(self, *masks))
)
plant("TwoTensors", NearNegatives, "returns positive pairs alone", MINED, r"PML refuses what mine\(\) returns")(
    listed=lambda self, near, far: torch.where(near)
)
plant("MinerLeavesOutRow", NearNegatives, "leaves out the reference in the same row", AMONG, "say references=True")(
    masks=lambda self, similarity, *labels: NearNegatives.masks(
        self, similarity, *labels[:2], labels[2] and similarity.shape[0] != similarity.shape[1]
    )
)
plant("PolarityIgnored", NearNegatives, "takes every distance for a similarity", ARGUMENTS)(
    similarity=lambda self, x, y: (self.distance(x, y), y is not x)
)
plant("NegativeZero", Hardest, "a triplet with no negative takes image 0 for one", DEGENERATE)(
    chosen=lambda self, similarity, near, far: (near, similarity.masked_fill(~far, -torch.inf))
)
plant("EpsilonIgnored", NearNegatives, "ignores a setting", "check_settings", "the setting epsilon changes neither")(
    __init__=lambda self, epsilon=0.1, **kwargs: NearNegatives.__init__(self, 0.1, **kwargs)
)
plant("MinesOnCPU", NearNegatives, "indices stay on the CPU", "check_devices", "on the CPU")(
    listed=lambda self, *masks: tuple(index.cpu() for index in NearNegatives.listed(self, *masks))
)
plant("PartnersFirst", Hardest, "gives partners before anchors", "check_mined_references", "is outside of 0 to 23")(
    capabilities=frozenset(), listed=lambda self, *masks: (lambda a, p, n: (p, a, n))(*Hardest.listed(self, *masks))
)


# Samplers.

plant("NamesKeptInBytes", FewClasses, "keeps the names of classes in bytes", LONG_RUN)(
    read=lambda self, labels: torch.as_tensor(labels).to(torch.uint8)
)
plant("SortsLabels", FewClasses, "sorts the labels that it is given, in place", LONG_RUN, "it changes the labels")(
    read=lambda self, labels: (labels.sort(), torch.as_tensor(labels))[1]
)
plant("ShufflesByPython", FewClasses, "shuffles by Python's generator", LONG_RUN)(
    images=lambda self, rows: random.sample(4 * rows.tolist() if len(rows) < 4 else rows.tolist(), 4)
)
plant("SameEveryEpoch", FewClasses, "draws the same in every epoch", LONG_RUN, "two passes in a row are equal")(
    __iter__=lambda self: (self.generator.manual_seed(self.seed), FewClasses.__iter__(self))[1]
)
plant("StateNotPutBack", FewClasses, "does not put its state back", STATE, "draws something else; give it state_dict")(
    load_state_dict=lambda self, state: None
)
plant("LiveState", FewClasses, "the state that was saved goes on changing", STATE)(
    state_dict=lambda self: {"generator": self.generator},
    load_state_dict=lambda self, state: self.generator.set_state(state["generator"].get_state()),
)
plant("SeedsGlobal", FewClasses, "seeds the global generator", GLOBALS, "it seeds the global generator of torch")(
    __iter__=lambda self: (torch.manual_seed(self.seed), FewClasses.__iter__(self))[1]
)
plant("OwnIterator", FewClasses, "is its own iterator, so that a second one goes on where the first is", PASS)(
    __iter__=lambda self: (setattr(self, "_batches", FewClasses.__iter__(self)), self)[1],
    __next__=lambda self: next(self._batches),
)
plant("DrawsTwice", FewClasses, "draws an image twice in a batch", PASS, "an image comes twice in a batch")(
    images=lambda self, rows: rows[torch.randint(len(rows), (4,), generator=self.generator)].tolist()
)
plant("TakesLabelsAsSorted", FewClasses, "takes labels as sorted", LONG_RUN)(
    images=lambda self, rows: FewClasses.images(self, torch.arange(int(rows[0]), int(rows[0]) + len(rows)) % 38)
)
plant("OneClass", FewClasses, "gives batches of one class", LONG_RUN, "every batch has one class alone")(
    some=lambda self, classes: FewClasses.some(self, classes)[:1].repeat(self.batch_size // 4)
)
plant("SeedIgnored", FewClasses, "does not look at its seed", LONG_RUN, "seed= is accepted and ignored")(
    __init__=lambda self, labels, batch_size, length_before_new_iter, seed=0: FewClasses.__init__(
        self, labels, batch_size, length_before_new_iter
    )
)
plant("LengthIgnored", FewClasses, "does not look at the length", PASS, "24 and 48 both give 2 items")(
    __init__=lambda self, labels, batch_size, length_before_new_iter: FewClasses.__init__(self, labels, batch_size, 24)
)
plant("EachIgnored", FewClasses, "ignores a setting", LONG_RUN, "the setting each changes nothing that it draws")(
    __init__=lambda self, labels, batch_size, length_before_new_iter, each=4: FewClasses.__init__(
        self, labels, batch_size, length_before_new_iter
    )
)
plant("StopsHalfway", FewClasses, "stops halfway", PASS, r"ZeroDivisionError: .* \(at others.py:\d+\)")(
    images=lambda self, rows: 1 / 0
)


# Distances.

plant(
    "SquareOfPairs",
    EuclideanDistance,
    "of pairs it gives the square",
    DISTANCE,
    "pairwise_distance differs from the diagonal",
)(pairwise_distance=lambda self, x, y: EuclideanDistance.pairwise_distance(self, x, y).square())
plant("Squeezes", EuclideanDistance, "one query or one reference loses its dimension", DISTANCE)(
    compute_mat=lambda self, x, y: EuclideanDistance.compute_mat(self, x, y).squeeze()
)
plant(
    "RootOfZero",
    EuclideanDistance,
    "no gradient where embeddings are equal",
    DISTANCE,
    "the gradient between equal points",
)(
    compute_mat=lambda self, x, y: (x[:, None] - y).square().sum(2).sqrt(),
    pairwise_distance=lambda self, x, y: (x - y).square().sum(1).sqrt(),
)
plant("NotSymmetric", EuclideanDistance, "is not symmetric", DISTANCE, "is not symmetric")(
    compute_mat=lambda self, x, y: EuclideanDistance.compute_mat(self, x, y.abs())
)
plant(
    "ScaledByBatch",
    EuclideanDistance,
    "divides by the largest of the batch",
    DISTANCE,
    "depends on others of the batch",
)(
    compute_mat=lambda self, x, y: EuclideanDistance.compute_mat(self, x, y) / x.abs().max(),
    pairwise_distance=lambda self, x, y: EuclideanDistance.pairwise_distance(self, x, y) / x.abs().max(),
)


@planted("a similarity that says it is a distance", DISTANCE, "pass is_inverted=True")
class WrongWay(CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


# Regularizers and reducers.

plant("OwnMean", LpRegularizer, "reducer= changes nothing", ARGUMENTS, "reducer= changes nothing")(
    compute_loss=lambda self, x: reduced(LpRegularizer.compute_loss(self, x)["loss"]["losses"].sum() / max(1, len(x)))
)
plant("NothingForNone", MeanReducer, "0 without a gradient where there are no values", REDUCER, "not 0 with")(
    zero_loss=lambda self, embeddings: embeddings.new_zeros(())
)
plant("ReturnsValues", BaseReducer, "returns values", REDUCER, r"element values give tensor.*\n.*, not")(
    forward=lambda self, loss_dict, embeddings, labels: loss_dict["loss"]["losses"]
)

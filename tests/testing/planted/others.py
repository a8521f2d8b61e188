"""Miners, samplers, distances, regularizers and reducers with one bug each."""

import itertools

import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext.distances import EuclideanDistance
from pml_ext.pairwise import gram
from pml_ext.plugin import masked_min, reduced

from .correct import FewClasses, Hardest, Indices, Moving, NearNegatives
from .table import REFERENCE, plant, planted

# Miners.

plant("ListsTwice", NearNegatives, "lists a pair once by each of two rules", "check_mined_indices", "listed twice")(
    listed=lambda self, *masks: tuple(torch.cat([i, i[: len(i) // 2]]) for i in NearNegatives.listed(self, *masks))
)
plant(
    "MinerLeavesOutRow",
    NearNegatives,
    "leaves out the reference in the same row",
    "check_mined_references",
    "say has_references=True",
)(
    masks=lambda self, similarity, *labels: NearNegatives.masks(
        self, similarity, *labels[:2], labels[2] and similarity.shape[0] != similarity.shape[1]
    )
)
plant("NegativeZero", Hardest, "a triplet with no negative takes image 0 for one", "check_degenerate_batches")(
    chosen=lambda self, similarity, near, far: (near, similarity.masked_fill(~far, -torch.inf))
)


plant("ItsOwnPositive", NearNegatives, "an anchor is its own positive", "check_mined_indices", "its own positive")(
    masks=lambda self, similarity, labels, ref_labels, references: (
        labels[:, None] == ref_labels,
        labels[:, None] != ref_labels,
    )
)
plant("WrongEnd", NearNegatives, "takes the far negatives", REFERENCE, r"reference: \d+ too many")(
    chosen=lambda self, similarity, near, far: (
        near,
        far & (similarity < masked_min(similarity, near)[:, None] + self.epsilon),
    )
)
plant("MarginTwice", NearNegatives, "doubles the margin", REFERENCE, "with epsilon=|with the settings as they are")(
    chosen=lambda self, similarity, near, far: (
        near,
        far & (similarity > masked_min(similarity, near)[:, None] - 2 * self.epsilon),
    )
)
plant("RandomHalf", NearNegatives, "leaves out pairs at random", REFERENCE, "draws at random, while the reference")(
    listed=lambda self, near, far: NearNegatives.listed(self, near, far & (torch.rand(far.shape) < 0.5))
)
plant("MovesInEvalToo", Moving, "moves in eval() too", "check_eval_keeps_state", "changes mean of its state")(
    moves=lambda self: True
)
plant("MovesUnsaved", Moving, "does not save what moves", "check_state_dict", "the next choice of pairs is another")(
    register_buffer=lambda self, name, value: setattr(self, "_kept", [value]),
    mean=property(lambda self: self._kept[0], lambda self, value: setattr(self, "_kept", [value])),
)


# Samplers.

plant(
    "SameEveryEpoch",
    FewClasses,
    "draws the same in every epoch",
    "check_sampler_passes_differ",
    "two passes in a row are equal",
)(__iter__=lambda self: (self.generator.manual_seed(self.seed), FewClasses.__iter__(self))[1])
plant(
    "StateNotPutBack",
    FewClasses,
    "does not put its state back",
    "check_sampler_state",
    "draws something else; state_dict\\(\\) misses",
)(load_state_dict=lambda self, state: None)
plant(
    "SeedsGlobal",
    FewClasses,
    "seeds the global generator",
    "check_globals_unchanged",
    "it seeds the global generator of torch",
)(__iter__=lambda self: (torch.manual_seed(self.seed), FewClasses.__iter__(self))[1])
plant("StopsHalfway", FewClasses, "stops halfway", "check_sampler", r"ZeroDivisionError: .* \(at others.py:\d+\)")(
    images=lambda self, rows: 1 / 0
)


plant("NeverEnds", FewClasses, "never ends", "check_sampler", r"a pass goes on after 10\d0 items, but len\(\) says \d")(
    __iter__=lambda self: itertools.cycle(FewClasses.__iter__(self))
)
plant("IndexTwice", Indices, "an index comes twice in a batch", "check_sampler", "an image comes twice in a batch")(
    images=lambda self, rows: [rows[0].item(), *Indices.images(self, rows)[:3]]
)
plant("TensorTwice", Indices, "a tensor comes twice", "check_sampler", "an image comes twice in a batch")(
    images=lambda self, rows: [rows[0].clone(), *map(torch.tensor, Indices.images(self, rows)[:3])]
)
plant("QueueUnsaved", Indices, "does not save its queue", "check_sampler_state", "such as a queue")(
    state_dict=lambda self: FewClasses.state_dict(self)
)
plant(
    "Of20Classes",
    FewClasses,
    "draws among 20 classes alone",
    "check_sampler_draws_many_classes",
    "21 of 41 classes",
)(some=lambda self, classes: FewClasses.some(self, classes[:20]))
plant(
    "FewOfSmall",
    FewClasses,
    "takes few images of a small class",
    "check_sampler_small_classes",
    r"a batch has \d+ images, but batch_size is 12, where a class has fewer",
)(images=lambda self, rows: FewClasses.images(self, rows)[: len(rows)])
plant(
    "GlobalAbove10",
    FewClasses,
    "draws from many classes by the global generator",
    "check_sampler_seed",
    "other indices of 41 classes where global generators differ",
)(
    some=lambda self, classes: (
        classes[torch.randperm(len(classes))[: self.batch_size // 4]]
        if len(classes) > 10
        else FewClasses.some(self, classes)
    )
)
plant(
    "SortsLabels",
    FewClasses,
    "sorts the labels in place",
    "check_sampler_keeps_labels",
    "it changes the labels that it is given in place",
)(read=lambda self, labels: (labels.sort(), FewClasses.read(self, labels))[1])
plant(
    "LeavesOutFirst",
    FewClasses,
    "never draws the first class",
    "check_sampler_draws_all",
    r"100 passes never give the classes \[-7\]",
)(some=lambda self, classes: FewClasses.some(self, classes[1:]))
plant(
    "LabelsIn32Bits",
    FewClasses,
    "keeps labels in 32 bits",
    "check_sampler_class_names",
    r"names of classes 2\*\*32 apart",
)(read=lambda self, labels: torch.as_tensor(labels).int())
plant(
    "OneClass",
    FewClasses,
    "takes each batch from one class",
    "check_sampler_gives_negatives",
    "every batch has one class alone",
)(some=lambda self, classes: FewClasses.some(self, classes)[:1])


@planted("has a setting that it forgets", "check_sampler_settings", "the setting m changes nothing that it draws")
class ForgetsSetting(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0, m: int = 4):
        super().__init__(labels, batch_size, length_before_new_iter, seed)


plant("NoStateDict", FewClasses, "has no state dict", "check_sampler_state", "a checkpoint cannot hold its generator")(
    state_dict=property(), load_state_dict=property()
)


@planted("fills a class up with its first image", "check_sampler_uneven_classes", "of a class that has enough of them")
class FilledWithFirst(FewClasses):
    def images(self, rows):
        if len(rows) < 4:
            return super().images(rows)
        filled = [*rows.tolist(), *[int(rows[0])] * (-len(rows) % 4)]
        start = 4 * int(torch.randint(len(filled) // 4, (), generator=self.generator))
        return filled[start : start + 4]


@planted("takes classes in pairs", "check_sampler_draws_many_classes", "never give 1 of 41 classes, such as 40")
class ClassesInPairs(FewClasses):
    def some(self, classes):
        pairs = len(classes) // 2
        count = max(1, self.batch_size // 8)
        chosen = torch.randperm(pairs, generator=self.generator)[:count]
        return classes[torch.stack([2 * chosen, 2 * chosen + 1], 1).flatten()]


@planted("goes through a set of texts", "check_sampler_hashing", "it goes through a set of texts")
class SetOfTexts(FewClasses):
    def some(self, classes):
        names = torch.tensor([int(name) for name in {str(label) for label in classes.tolist()}])
        return FewClasses.some(self, names)


# Distances.

plant(
    "OnePairSqueezed", LpDistance, "one pair is a scalar", "check_distance", r"one pair has the shape \(\), not \(1,\)"
)(pairwise_distance=lambda self, x, y: LpDistance.pairwise_distance(self, x, y).squeeze())

plant(
    "RootOfZero",
    EuclideanDistance,
    "no gradient where embeddings are equal",
    "check_distance",
    "the gradient between equal points",
)(
    compute_mat=lambda self, x, y: (x[:, None] - y).square().sum(2).sqrt(),
    pairwise_distance=lambda self, x, y: (x - y).square().sum(1).sqrt(),
)


@planted("a similarity that says it is a distance", "check_distance", "pass is_inverted=True")
class WrongWay(CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


plant("OfUnitLength", LpDistance, "is right for unit vectors alone", "check_distance", "normalize_embeddings=False")(
    compute_mat=lambda self, x, y: (2 - 2 * x @ y.T).clamp(min=1e-12).sqrt()
)
plant("InAutocast", CosineSimilarity, "a function of its own in autocast", "check_dtypes", "leave autocast")(
    compute_mat=lambda self, x, y: gram(x) if y is x else x @ y.T
)


# Regularizers and reducers.

plant("OwnMean", LpRegularizer, "reducer= changes nothing", "check_arguments", "reducer= changes nothing")(
    compute_loss=lambda self, x: reduced(LpRegularizer.compute_loss(self, x)["loss"]["losses"].sum() / max(1, len(x)))
)
plant("NothingForNone", MeanReducer, "0 without a gradient where there are no values", "check_reducer", "not 0 with")(
    zero_loss=lambda self, embeddings: embeddings.new_zeros(())
)

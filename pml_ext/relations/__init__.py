"""Relations instead of equal labels: sets, trees, matrices, numbers, groups, unknown classes."""

from .base import Relation as Relation
from .batch import (
    Related as Related,
    label_tensors as label_tensors,
    related as related,
    related_pairs as related_pairs,
)
from .by_name import RELATIONS as RELATIONS
from .groups import DifferentGroups as DifferentGroups
from .label_sets import SharedLabel as SharedLabel
from .matrix import FromMatrix as FromMatrix
from .near import Near as Near
from .tree import Hierarchy as Hierarchy
from .unknown import NegativesOnly as NegativesOnly

"""Relations between classes, by their names in recipes."""

from collections.abc import Callable

from .base import Relation
from .label_sets import SharedLabel
from .near import Near
from .tree import Hierarchy
from .unknown import NegativesOnly

RELATIONS: dict[str, Callable[..., Relation]] = {
    "shared-label": SharedLabel.of_classes,
    "hierarchy": Hierarchy,
    "near": Near.of_classes,
    "negatives-only": NegativesOnly.of_classes,
}
"""Functions from the names of classes to relations, by their names in recipes; labels are places among the names."""

"""What can be delivered for somebody's vectors: as they are, whitened, or with a head that is trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .candidates import InClosedForm, Trained
from .closed_forms import AS_THEY_ARE, CLOSED_FORMS, ClosedForm
from .settings import Settings
from .vectors import RECIPE, OwnVectors


@dataclass(frozen=True)
class VectorsInClosedForm(InClosedForm):
    """The vectors, as they are or whitened."""

    vectors: OwnVectors
    form: ClosedForm = AS_THEY_ARE

    recipe: ClassVar[str] = RECIPE

    @property
    def title(self) -> str:
        """The name for readers."""
        return f"vectors{self.form.title or ' as they are'}"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self.vectors.settings | self.form.settings(self.vectors.size)

    @property
    def description(self) -> str:
        """A line for the report where nothing was tried."""
        return f"Your own {self.title}"


@dataclass(frozen=True)
class HeadOnVectors(Trained):
    """A head that is trained on vectors: where the tested classes are those that train.

    For new classes, it is behind the vectors and their whitening.
    """

    vectors: OwnVectors

    title: ClassVar[str] = "trained head"
    most_iterations: ClassVar[int] = 40_000  # which take a minute: all folds of the most vectors
    recipe: ClassVar[str] = RECIPE

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self.vectors.settings

    def trial_settings(self, classes: int, share: float) -> Settings:
        """Return no other settings: the classes are the same."""
        return {}


def closed_forms(vectors: OwnVectors) -> list[VectorsInClosedForm]:
    """Return what costs nothing, the simplest first."""
    return [VectorsInClosedForm(vectors, form) for form in CLOSED_FORMS]


def trained(vectors: OwnVectors) -> list[Trained]:
    """Return what is trained: a head, if the tested classes are those that train."""
    return [HeadOnVectors(vectors)] if vectors.shares_classes else []

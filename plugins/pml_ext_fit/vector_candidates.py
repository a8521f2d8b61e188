"""What can be delivered for vectors: unwhitened, whitened, or with a trained head."""

from .candidates import Candidate
from .closed_forms import CLOSED_FORMS
from .vectors import RECIPE, OwnVectors

MOST_ITERATIONS = 40_000  # of all trials of a head, which take a minute


def closed_forms(vectors: OwnVectors) -> list[Candidate]:
    """The vectors, unwhitened and whitened, the simplest first."""
    found = []
    for form in CLOSED_FORMS:
        title = f"vectors{form.title or ', unwhitened'}"
        settings = vectors.settings | form.settings(vectors.size)
        found.append(Candidate(title, RECIPE, settings, f"Your own {title}", form))
    return found


def trained(vectors: OwnVectors) -> list[Candidate]:
    """A head, if the tested classes train; for new classes, whitening is better."""
    if not vectors.shares_classes:
        return []
    return [Candidate("trained head", RECIPE, vectors.settings, most_iterations=MOST_ITERATIONS)]

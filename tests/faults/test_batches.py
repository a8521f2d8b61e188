"""Random batches through our components: finite in, finite out."""

from . import batches


def test_finite_batches_give_finite_values_and_gradients():
    wrong = {name: f"{what}: {text}" for name, what, text in batches.sweep(800) if text}
    assert wrong == {}
    assert len(batches.subjects()) > 15

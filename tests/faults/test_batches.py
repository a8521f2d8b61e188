"""A small selection of :mod:`benchmarks.faults.batches`, over our components: finite in, finite out."""

from benchmarks.faults import batches


def test_finite_batches_give_finite_values_and_gradients():
    wrong = {name: f"{what}: {text}" for name, what, text in batches.sweep(800, ours=True) if text}
    assert wrong == {}
    assert len([name for name in batches.subjects() if " pml/" not in name]) > 15

"""What a run's step does beside a bare loop's."""

from benchmarks.step_overhead import bare_epoch, epoch_of_a_run, of_a_step, operators_of


def test_a_step_adds_few_operators():
    ours = of_a_step("cbml/digits", epoch_of_a_run, operators_of)
    bare = of_a_step("cbml/digits", bare_epoch, operators_of)
    assert sum(bare.values()) > 100
    assert sum(ours.values()) <= sum(bare.values()) + 3  # the check for NaN; clearing gradients is no operator

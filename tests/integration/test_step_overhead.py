"""What a run's step does beside a bare loop's."""

from benchmarks.step_overhead import TOGETHER, bare_epoch, epoch_of_a_run, of_a_step, operators_of, reads_of
from pml_ext_train.training import engine


def test_a_step_adds_few_operators():
    ours = of_a_step("cbml/digits", epoch_of_a_run, operators_of)
    bare = of_a_step("cbml/digits", bare_epoch, operators_of)
    assert sum(bare.values()) > 100
    assert sum(ours.values()) <= sum(bare.values()) + 3  # the check for NaN; clearing gradients is no operator


def test_a_step_waits_for_the_device_once(monkeypatch):
    """A bare loop waits for its loss; a run reads loss, norms and what is recorded in one transfer, and no more."""
    transfers = []

    def counted(values):
        transfers.append(len(values))
        return read_numbers(values)

    read_numbers = engine.read_numbers
    monkeypatch.setattr(engine, "read_numbers", counted)
    ours = of_a_step("cbml/digits", epoch_of_a_run, reads_of)
    assert len(transfers) == 4 + 4 + 4 + 14  # the iterations of the four epochs that of_a_step trains
    assert ours.pop(TOGETHER) >= 2
    bare = of_a_step("cbml/digits", bare_epoch, reads_of)
    bare["item"] -= 1  # loss.item()
    assert ours == bare

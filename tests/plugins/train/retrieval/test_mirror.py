"""Differences between an index, or a store, and the one before."""

from pml_ext_train.retrieval.mirror import Changes


def test_changes_are_printed_in_words():
    assert str(Changes(1200, 3, 0, 7)) == "1,200 new, 3 changed, 0 gone, 7 as before"

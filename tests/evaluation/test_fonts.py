"""Fonts for names in any script."""

from pml_ext.evaluation import fonts


def test_names_are_cut_at_their_beginning():
    assert fonts.short_name("a" * 18) == "a" * 18
    assert fonts.short_name("b" + "a" * 18) == "…" + "a" * 17
    assert fonts.short_name("中" * 9) == "中" * 9
    assert fonts.short_name("中" * 10) == "…" + "中" * 8
    assert fonts.short_name("two\nx\u202egpj.exe\udcff") == "two�x�gpj.exe�"


def test_letters_that_cannot_be_drawn():
    assert fonts.drawable("a\nb\x07\u202ec\udcff") == "a\nb��c�"

"""Fonts for names in any script."""

import pytest

from pml_ext.evaluation import fonts

LATIN = str(fonts._default().fname)


def test_dejavu_has_what_it_has():
    assert list(fonts.runs_of("price $5_$6 שלום")) == [(LATIN, "price $5_$6 שלום")]
    assert fonts.families_of("price") == [fonts.DEFAULT]


def test_a_font_that_was_installed_after_matplotlib_looked_is_taken(monkeypatch, tmp_path):
    """Its list of fonts is of the day when it was first imported."""
    others = [file for file in fonts.findSystemFonts() if "CJK" in file and "Sans" in file and "Regular" in file]
    if not others:
        pytest.skip("no Chinese font here")
    known = [entry for entry in fonts.fontManager.ttflist if "CJK" not in entry.fname]
    monkeypatch.setattr(fonts.fontManager, "ttflist", known)
    fonts._others.cache_clear()
    fonts._entry_of.cache_clear()
    assert list(fonts.runs_of("a中文b")) == [(LATIN, "a"), (others[0], "中文"), (LATIN, "b")]
    assert len(fonts.families_of("a中")) == 2


def test_what_no_font_has_is_left_to_dejavu():
    assert list(fonts.runs_of("\U000e0001")) == [(LATIN, "\U000e0001")]


def test_names_are_cut_at_their_beginning():
    assert fonts.short_name("a" * 18) == "a" * 18
    assert fonts.short_name("b" + "a" * 18) == "…" + "a" * 17
    assert fonts.short_name("中" * 9) == "中" * 9
    assert fonts.short_name("中" * 10) == "…" + "中" * 8
    assert fonts.short_name("two\nx\u202egpj.exe\udcff") == "two�x�gpj.exe�"


def test_letters_that_cannot_be_drawn():
    assert fonts.drawable("a\nb\x07\u202ec\udcff") == "a\nb��c�"

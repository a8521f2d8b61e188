"""Errors of one line, and the texts that they are made of."""

import pytest

from pml_ext import errors
from pml_ext.errors import (
    ConfigError,
    MissingExtraError,
    PmlExtError,
    StoppedError,
    UnknownNameError,
    counted,
    first_of,
    needs_extra,
    one_line,
    printable,
    shortened,
    unknown,
)


def test_errors_have_their_text_and_exit_code():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PmlExtError)]
    assert len(kinds) == 10
    assert {(str(kind("one text")), str(kind())) for kind in kinds} == {("one text", "")}  # KeyError would quote it
    assert {kind.exit_code for kind in kinds} == {1, 2}
    assert issubclass(UnknownNameError, KeyError)
    assert issubclass(ConfigError, ValueError)


def test_a_signal_passes_handlers_of_exceptions():
    stopped = StoppedError(15, "ended")
    assert (stopped.exit_code, stopped.signal, str(stopped)) == (143, 15, "ended")
    assert not isinstance(stopped, Exception)


def test_unknown_name_suggests_the_nearest_or_some():
    names = ["cbml", "angular", "pml/triplet-margin", "n-pair", "CBML"]
    assert unknown("loss", "cbmll", names) == "no loss 'cbmll'; nearest: cbml"
    assert unknown("loss", "triplet-margin", ["triplet-margin-x", "other/triplet-margin"]).endswith(
        "nearest: triplet-margin-x, other/triplet-margin"
    )
    many = [letter * 5 for letter in "abcdefghijklmn"]
    assert unknown("loss", "0123", many) == f"no loss '0123'; known: {', '.join(many[:12])}, ..."
    assert unknown("loss", "0123", iter(())) == "no loss '0123'; known: none"
    assert len(unknown("loss", "x" * 10**6, names)) < 200


def test_numbers_and_lists_in_words():
    assert [counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert (first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2)) == ("a, b, ...", "a, b")


def test_missing_package_is_named_with_its_remedy():
    with (
        pytest.raises(MissingExtraError) as caught,
        needs_extra("train", "a figure"),
    ):
        import no_such_package  # noqa: F401
    text = "a figure needs the package 'no_such_package', which is not installed. Run: pip install \"pml-ext[train]\""
    assert str(caught.value) == text
    with pytest.raises(ImportError, match="cannot import name"), needs_extra("train", "a figure"):
        from pml_ext.errors import no_such_name  # noqa: F401


def test_a_text_is_one_printable_line():
    assert printable("a\nb\x1b[31m\udcffä") == r"a\nb\x1b[31m\udcffä"
    errors = [ValueError("first\nsecond"), KeyError(), OSError("  \n ")]
    assert list(map(one_line, errors)) == ["ValueError: first", "KeyError", "OSError"]


@pytest.mark.parametrize("count", [0, 599, 600, 601, 10**6])
def test_a_long_text_loses_its_middle(count):
    text = "<" + "x" * count + "\n  y>"
    found = shortened(text)
    assert len(found) <= 600
    assert (found[0], found[-3:]) == ("<", " y>")
    assert (" ... " in found) == (count + 4 > 600)

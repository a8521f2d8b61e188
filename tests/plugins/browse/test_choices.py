"""Names of groups, which follow their images from one clustering to another, and the file that keeps them."""

from types import SimpleNamespace

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_browse.choices import FILE, Choices
from pml_ext_train.files import read_json

PATHS = [f"{number}.png" for number in range(12)]


def grouped(*groups):
    """A grouping of twelve images; those that are in no group are the rest."""
    numbers = np.full(12, -1)
    clusters = [SimpleNamespace(number=number, members=members) for number, members in enumerate(groups)]
    for each in clusters:
        numbers[each.members] = each.number
    return SimpleNamespace(numbers=numbers, clusters=clusters)


FIRST = grouped([0, 1, 2, 3, 4], [5, 6, 7], [8, 9])


@pytest.fixture
def choices(tmp_path):
    made = Choices(tmp_path, tmp_path / "photos")
    made.name({0: "heron", 1: "egret", 2: ""}, FIRST, PATHS)
    return made


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (([0, 1, 2, 3, 4], [5, 6, 7], [8, 9]), {0: ("heron", 5), 1: ("egret", 3)}),
        (([5, 6, 7], [0, 1, 2], [3, 4], [8]), {0: ("egret", 3), 1: ("heron", 3), 2: ("heron", 2)}),  # divided
        (([*range(12)],), {0: ("heron", 5)}),  # joined: the name of the most
        (([0, 1, 2, 3, 4, 10, 11], [5, 6, 8], [7, 9]), {0: ("heron", 5), 1: ("egret", 2)}),
        (([4, 8, 9], [0, 1, 2, 3]), {1: ("heron", 4)}),
    ],
)
def test_names_follow_most_of_their_images(choices, groups, names):
    assert choices.names_of(grouped(*groups), PATHS) == names


def test_names_that_another_clustering_hides_stay(choices):
    whole = grouped([*range(10)], [10, 11])
    choices.name({0: "heron", 1: "gull"}, whole, PATHS)  # the first was shown, the second was typed
    assert choices.names_of(FIRST, PATHS) == {0: ("heron", 5), 1: ("egret", 3)}
    assert choices.names["11.png"] == "gull"


@pytest.mark.parametrize("name", ["night heron", ""])
def test_a_changed_name_is_replaced_everywhere(choices, name):
    divided = grouped([0, 1, 2, 3], [4, 10, 11])
    choices.name({0: name, 1: ""}, divided, PATHS)
    assert {*choices.names.values()} == {name, "egret"} - {""}
    assert "4.png" not in choices.names


def test_names_and_labels_outlive_the_page(choices, tmp_path):
    other = Choices(tmp_path, tmp_path / "others")
    assert other.names == {}
    other.labels["0.png"] = "gull"
    other.save()
    again = Choices(tmp_path, tmp_path / "photos")
    assert again.names_of(FIRST, PATHS) == choices.names_of(FIRST, PATHS)
    assert read_json(tmp_path / FILE)[str(tmp_path / "others")] == {"names": {}, "labels": {"0.png": "gull"}}


def test_a_file_that_fails_is_reported(choices, tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_browse.choices.write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    choices.name({2: "gull"}, FIRST, PATHS)
    assert choices.problem.startswith("names and labels are lost when the page closes: ")
    assert choices.names["9.png"] == "gull"
    (tmp_path / FILE).write_text("[1")
    with pytest.raises(DataError, match=r"browse.json: damaged \(.*\); to begin without names, delete it"):
        Choices(tmp_path, tmp_path / "photos")

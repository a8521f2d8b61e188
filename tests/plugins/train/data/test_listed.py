"""Lists of pairs and triplets of images or vectors, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from pml_ext.errors import DataError
from pml_ext_train.data import pairs, triplets

HEAD = "image1,image2,same,split"
PAIRS = ["a,b,1,train", "a,c,0,train", "d,e,true,test", "e,f,False,test"]
TRIPLETS = ["a,b,c,train", "b,a,d,train", "e,f,g,test"]
OF_TRIPLETS = "anchor,positive,negative,split"


def vectors_of(place, **columns):
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.savez(place / "mine.npz", embeddings=rows, ids=np.array(list("hgfedcba")), **columns)
    return str(place / "mine.npz")


def list_of(place, rows, head=HEAD):
    file = place / "mine.csv"
    file.write_text("\n".join([head, *rows]))
    return str(file)


def of_vectors(place, rows, head=HEAD, **columns):
    load = triplets if head == OF_TRIPLETS else pairs
    return load(path=list_of(place, rows, head), vectors=vectors_of(place, **columns))


def by_ids(part):
    return [[part.ids[item] for item in row] for row in part.tuples.rows.tolist()]


def test_pairs_refer_to_vectors_by_id(tmp_path):
    splits = of_vectors(tmp_path, PAIRS)
    known = dict(zip("hgfedcba", np.arange(24).reshape(8, 3).tolist(), strict=True))
    for part, expected in ((splits.train, [["a", "b"], ["a", "c"]]), (splits.test, [["d", "e"], ["e", "f"]])):
        assert by_ids(part) == expected
        assert part.tuples.same.tolist() == [True, False]
        assert part.vectors.tolist() == [known[id] for id in part.ids]
    assert (splits.vector_size, splits.validation, splits.note) == (3, None, "")


def test_triplets_of_vectors_lie_below_a_folder(tmp_path):
    vectors_of(tmp_path)
    rows = [*TRIPLETS, "a,h,e,validation"]
    splits = triplets(tmp_path, path=list_of(tmp_path, rows, OF_TRIPLETS), vectors="mine.npz")
    assert by_ids(splits.train) == [["a", "b", "c"], ["b", "a", "d"]]
    assert by_ids(splits.validation) == [["a", "h", "e"]]
    assert splits.test.tuples.same is None


@pytest.fixture
def images(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.new("L", (20, 16), 40 * number).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path


LISTED = [
    f"photos/{a}.png,photos/{b}.png,{same},{split}"
    for a, b, same, split in ((0, 1, 1, "train"), (1, 2, 0, "train"), (3, 4, 1, "test"), (5, 4, 0, "test"))
]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_pairs_of_images_are_found_by_path(images, elsewhere):
    place = images / "lists" if elsewhere else images
    place.mkdir(exist_ok=True)
    splits = pairs(images if elsewhere else None, path=list_of(place, LISTED), channels=1, image_size=32)
    assert [path.name for path in splits.test.paths] == ["3.png", "4.png", "5.png"]
    assert splits.test.tuples.rows.tolist() == [[0, 1], [2, 1]]
    assert splits.image_size == 32
    image, label = splits.train[2]
    assert (tuple(image.shape), label, int(image[0, 0, 0])) == ((1, 16, 20), 0, 80)


def test_a_subset_keeps_only_complete_pairs(images):
    train = pairs(path=list_of(images, LISTED)).train
    kept = train.subset([1, 2])
    assert [path.name for path in kept.paths] == ["1.png", "2.png"]
    assert (kept.tuples.rows.tolist(), kept.tuples.same.tolist()) == ([[0, 1]], [False])
    sample = train.sample_of_tuples(2, seed=0)
    assert (len(sample), sample.tuples.same.tolist()) == (3, [True, False])  # a pair of each kind


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["a,,1,train"], "mine.csv, line 6: image2 is empty; fill the cell, or delete the row"),
        (["a,NaN,1,train"], "mine.csv, line 6: image2 is empty"),
        (["a,b"], "mine.csv, line 6: same is empty"),
        (["a,a,1,train"], "mine.csv, line 6: a is both image1 and image2; pairs need different images"),
        (["b,a,0,train"], "line 6: b and a are not the same here, but the same in line 2; delete one of the lines"),
        (["a,b,0,test"], "line 6: a and b are not the same here, but the same in line 2"),
        (["a,d,maybe,train"], r"mine.csv, line 6: found same 'maybe'; type 1 or 0 \(or true or false\)"),
        (["a,d,1,tset"], "mine.csv, line 6: no split 'tset'; nearest: test"),
        (["a,z,1,train", "y,b,1,train"], "2 ids of 8 are not in .*mine.npz, 'z' first; its ids are h, g, f, ..."),
        (["a,h,1,validation"], "all 1 pairs of validation are the same; add others"),
    ],
)
def test_a_wrong_pair_is_named_by_line(tmp_path, rows, text):
    with pytest.raises(DataError, match=text) as caught:
        of_vectors(tmp_path, [*PAIRS, *rows])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "head", "text"),
    [
        ([], "", "no column image1 and no image2 and no same and no split among none; the first line needs image1"),
        (["a,b,train"], "image1,image2,split", "no column same among image1, image2, split"),
        ([], HEAD, "no pairs to train with, found no row; add rows of train"),
        (PAIRS[2:], HEAD, "no pairs to train with, found test; add rows of train"),
        (PAIRS[:2], HEAD, "no pairs to test with, found train; add rows of test"),
        (["a,b,1,train", *PAIRS[2:]], HEAD, "all 1 pairs of train are the same; add others"),
        ([*PAIRS[:2], "e,f,0,test"], HEAD, "all 1 pairs of test are not the same; add others"),
        (['"a"x,b,1,train'], HEAD, "cannot be read as pairs .*; pairs:FILE.csv must be UTF-8 with balanced quotes"),
        ([*TRIPLETS, "a,b,a,train"], OF_TRIPLETS, "line 5: a is both anchor and negative; triplets need different"),
        ([*TRIPLETS, "a,b,,train"], OF_TRIPLETS, "line 5: negative is empty"),
        ([*TRIPLETS, "a,b,c,valid"], OF_TRIPLETS, "line 5: no split 'valid'; nearest: validation"),
    ],
)
def test_a_list_with_wrong_content_is_refused(tmp_path, rows, head, text):
    with pytest.raises(DataError, match=text):
        of_vectors(tmp_path, rows, head)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("photos/0.png,photos/99.png,1,train", r"99.png: no such file, but .*mine.csv lists it \(1 are missing\)"),
        ("photos/0.png,./photos/5.png,1,train", r"photos/5.png and ./photos/5.png are the same file"),
        ("photos/0.png,{}/photos/5.png,1,train", r"photos/5.png and /.*/photos/5.png are the same file"),
    ],
)
def test_a_missing_or_twice_named_image_is_refused(images, monkeypatch, row, text):
    monkeypatch.chdir(images)
    list_of(images, [*LISTED, row.format(images)])
    with pytest.raises(DataError, match=text):
        pairs(path="mine.csv")


def test_unused_columns_and_doubtful_rows_are_noted(tmp_path):
    rows = [f"{row},x" for row in PAIRS]
    splits = of_vectors(tmp_path, rows, f"{HEAD},colour", split=np.array(["train", "test"] * 4))
    assert "mine.csv: not used: colour; the columns used are image1, image2, same, split" in splits.note
    assert "mine.npz: not used: split; " in splits.note
    splits = of_vectors(tmp_path, [*PAIRS, "a,e,0,test", "b,e,0,test"])
    assert "mine.csv: 2 of 5 test images are also trained on, a first" in splits.note
    both = of_vectors(tmp_path, [*TRIPLETS, "a,c,b,train"], OF_TRIPLETS)
    assert "1 triplet listed in both orders, a, b, c first" in both.note

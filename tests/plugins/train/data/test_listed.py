"""Lists of pairs and triplets: of images and of vectors, and what is refused, each in one line."""

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


def of_vectors(place, rows, head=HEAD, load=pairs, **columns):
    return load(path=list_of(place, rows, head), vectors=vectors_of(place, **columns))


def by_ids(part):
    return [[part.ids[item] for item in row] for row in part.tuples.rows.tolist()]


def test_pairs_of_vectors(tmp_path):
    splits = of_vectors(tmp_path, PAIRS)
    assert splits.vector_size == 3
    assert by_ids(splits.train) == [["a", "b"], ["a", "c"]]
    assert splits.train.tuples.same.tolist() == [True, False]
    assert by_ids(splits.test) == [["d", "e"], ["e", "f"]]
    assert splits.test.tuples.same.tolist() == [True, False]
    known = dict(zip("hgfedcba", np.arange(24).reshape(8, 3).tolist(), strict=True))
    for part in (splits.train, splits.test):
        assert part.vectors.tolist() == [known[id] for id in part.ids]
    assert splits.validation is None
    assert splits.note == ""


def test_triplets_of_vectors_below_a_folder(tmp_path):
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


def image_pairs(*pairs_of_numbers):
    return [f"photos/{a}.png,photos/{b}.png,{same},{split}" for a, b, same, split in pairs_of_numbers]


LISTED = image_pairs((0, 1, 1, "train"), (1, 2, 0, "train"), (3, 4, 1, "test"), (5, 4, 0, "test"))


def test_pairs_of_images_beside_the_list_or_below_a_folder(images):
    (images / "lists").mkdir()
    for root, place in ((None, images), (images, images / "lists")):
        splits = pairs(root, path=list_of(place, LISTED), channels=1, image_size=32)
        assert [path.name for path in splits.test.paths] == ["3.png", "4.png", "5.png"]
        assert splits.test.tuples.rows.tolist() == [[0, 1], [2, 1]]
        assert splits.image_size == 32
        image, label = splits.train[2]
        assert (tuple(image.shape), label, int(image[0, 0, 0])) == ((1, 16, 20), 0, 80)


def test_images_that_are_left_out_take_their_pairs_along(images):
    train = pairs(path=list_of(images, LISTED)).train
    kept = train.subset([1, 2])
    assert [path.name for path in kept.paths] == ["1.png", "2.png"]
    assert kept.tuples.rows.tolist() == [[0, 1]]
    assert kept.tuples.same.tolist() == [False]
    sample = train.sample_of_tuples(2, seed=0)
    assert len(sample) == 3  # a pair of each kind
    assert sample.tuples.same.tolist() == [True, False]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["a,,1,train"], "mine.csv, line 6: image2 is empty; wanted a value in each of image1, image2, same, split"),
        (["a,NaN,1,train"], "mine.csv, line 6: image2 is empty"),
        (["a,b"], "mine.csv, line 6: same is empty"),
        (["a,a,1,train"], "mine.csv, line 6: a is image1 and image2; wanted pairs of different images"),
        (["b,a,0,train"], "mine.csv, line 6: b and a are not the same, and the same in line 2; wanted one answer"),
        (["a,b,0,test"], "line 6: a and b are not the same, and the same in line 2; wanted one answer, delete a line"),
        (["a,d,maybe,train"], r"mine.csv, line 6: found same 'maybe'; wanted 1 or 0 \(or true or false\)"),
        (["a,d,1,tset"], "mine.csv, line 6: no split 'tset'; nearest: test"),
        (["a,z,1,train", "y,b,1,train"], "2 ids of 8 are not in .*mine.npz, 'z' first; its ids are h, g, f, ..."),
        (["a,h,1,validation"], "all 1 pairs of validation are the same; wanted pairs of both answers"),
    ],
)
def test_pairs_that_do_not_serve(tmp_path, rows, text):
    with pytest.raises(DataError, match=text) as caught:
        of_vectors(tmp_path, [*PAIRS, *rows])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "head", "text"),
    [
        ([], "", "no column image1 and no image2 and no same and no split among none; wanted image1, image2, same"),
        (["a,b,train"], "image1,image2,split", "no column same among image1, image2, split"),
        ([], HEAD, "no pairs to train with; found no row; wanted train and test"),
        (PAIRS[2:], HEAD, "no pairs to train with; found test; wanted train and test"),
        (PAIRS[:2], HEAD, "no pairs to test with; found train; wanted train and test"),
        (["a,b,1,train", *PAIRS[2:]], HEAD, "all 1 pairs of train are the same; wanted pairs of both answers"),
        ([*PAIRS[:2], "e,f,0,test"], HEAD, "all 1 pairs of test are not the same; wanted pairs of both answers"),
        (['"a"x,b,1,train'], HEAD, "cannot be read as pairs .*; pairs:FILE.csv must be UTF-8 with balanced quotes"),
    ],
)
def test_lists_that_are_none(tmp_path, rows, head, text):
    with pytest.raises(DataError, match=text):
        of_vectors(tmp_path, rows, head)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["a,b,a,train"], "line 5: a is anchor and negative; wanted triplets of different images"),
        (["a,b,,train"], "line 5: negative is empty"),
        (["a,b,c,valid"], "line 5: no split 'valid'; nearest: validation"),
    ],
)
def test_triplets_that_do_not_serve(tmp_path, rows, text):
    with pytest.raises(DataError, match=text):
        of_vectors(tmp_path, [*TRIPLETS, *rows], OF_TRIPLETS, triplets)


def test_images_that_are_missing_or_named_twice(images):
    with pytest.raises(DataError, match=r"photos/99.png: no such file, though .*mine.csv lists it \(1 are missing\)"):
        pairs(path=list_of(images, [*LISTED, *image_pairs((0, 99, 1, "train"))]))
    twice = "photos/0.png,./photos/5.png,1,train"
    with pytest.raises(DataError, match=r"photos/5.png and ./photos/5.png|./photos/5.png and photos/5.png"):
        pairs(path=list_of(images, [*LISTED, twice]))


def test_a_path_that_is_relative_and_absolute_is_one(images, monkeypatch):
    monkeypatch.chdir(images)
    list_of(images, [*LISTED, f"photos/0.png,{images}/photos/5.png,1,train"])
    with pytest.raises(DataError, match=r"photos/5.png are one image|/photos/5.png and photos/5.png"):
        pairs(path="mine.csv")


def test_notes_name_what_is_not_used_and_what_trains_too(tmp_path):
    rows = [f"{row},x" for row in PAIRS]
    splits = of_vectors(tmp_path, rows, f"{HEAD},colour", split=np.array(["train", "test"] * 4))
    assert "mine.csv: not used: colour; the columns that are used are image1, image2, same, split" in splits.note
    assert "mine.npz: not used: split; " in splits.note
    splits = of_vectors(tmp_path, [*PAIRS, "a,e,0,test", "b,e,0,test"])
    assert "mine.csv: 2 of 5 tested images train too, a first, so that the test is not one of new images" in splits.note
    both = of_vectors(tmp_path, [*TRIPLETS, "a,c,b,train"], OF_TRIPLETS, triplets)
    assert "1 triplet listed in both orders, a, b, c first" in both.note

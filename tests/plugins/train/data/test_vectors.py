"""Files of vectors: three formats with one content, their splits, and what is refused."""

import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch

from pml_ext.errors import ConfigError, DataError, MissingExtraError
from pml_ext_train.data import is_vector_file, read_vectors, vectors

LABELS = ["cat", "dog", "cat", "dog", "owl", "owl", "owl", "cat"]


PARTS = ["train", "train", "train", "train", "test", "test", "test", "test"]


def columns(**changes):
    return {"embeddings": np.arange(24, dtype=np.float32).reshape(8, 3), "labels": np.array(LABELS)} | changes


ROWS = columns()["embeddings"]


def npz(place, **changes):
    kept = {name: column for name, column in columns(**changes).items() if column is not None}
    np.savez(place / "mine.npz", **kept)
    return place / "mine.npz"


def parquet(place, fixed_size=False, **changes):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    given = columns(**changes)
    rows = given.pop("embeddings")
    kind = arrow.list_(arrow.float32(), 3) if fixed_size else arrow.list_(arrow.float64())
    arrays = {} if rows is None else {"embeddings": arrow.array([*map(list, rows)], kind)}
    arrays |= {name: arrow.array(list(column)) for name, column in given.items() if column is not None}
    write_table(arrow.table(arrays), place / "mine.parquet", row_group_size=3)
    return place / "mine.parquet"


def safetensors(place, **changes):
    from safetensors.torch import save_file

    given = columns(**changes)
    embeddings = torch.tensor(given.pop("embeddings"), dtype=torch.bfloat16)
    texts = {name: json.dumps(list(column)) for name, column in given.items()}
    save_file({"embeddings": embeddings}, place / "mine.safetensors", texts)
    return place / "mine.safetensors"


@pytest.mark.parametrize("write", [npz, parquet, safetensors])
def test_all_formats_have_the_same_content(tmp_path, write):
    file = read_vectors(write(tmp_path, ids=list("abcdefgh"), split=PARTS, groups=["", *"xyzxyz", ""]))
    assert file.embeddings.dtype == np.float32
    np.testing.assert_array_equal(file.embeddings, ROWS)
    assert file.class_names == ["cat", "dog", "owl"]
    assert file.labels.tolist() == [0, 1, 0, 1, 2, 2, 2, 0]
    assert (file.ids.tolist(), file.split.tolist(), file.groups.tolist()) == (
        list("abcdefgh"),
        PARTS,
        ["", *"xyzxyz", ""],
    )
    assert is_vector_file(file.path)


def test_parquet_may_have_fixed_sizes_and_categories(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    file = read_vectors(parquet(tmp_path, fixed_size=True, labels=arrow.array(LABELS).dictionary_encode()))
    assert file.embeddings.flags.writeable  # torch warns of arrays that are not
    np.testing.assert_array_equal(file.embeddings, ROWS)
    assert file.class_names == ["cat", "dog", "owl"]


def test_integer_labels_and_missing_groups_are_read(tmp_path):
    file = read_vectors(
        npz(
            tmp_path,
            labels=np.array([10, 9, 10, 9, 2, 2, 2, 2]),
            ids=np.arange(8) * 5,
            groups=np.array(["a", "nan", "None", "", "<NA>", "b", "b", "c"]),
        )
    )
    assert file.class_names == ["2", "9", "10"]
    assert file.ids.tolist()[:3] == ["0", "5", "10"]
    assert file.groups.tolist() == ["a", "", "", "", "", "b", "b", "c"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": ROWS[0]}, r"embeddings have the shape \[3\]; they need \[N, D\]"),
        ({"embeddings": ROWS[:, :0]}, r"embeddings have the shape \[8, 0\]; they need"),
        ({"embeddings": ROWS.astype(str)}, "embeddings have the type <U32; they must be numbers"),
        ({"embeddings": None}, "no key 'embeddings', .* among the keys labels"),
        ({"labels": None}, "no labels; training needs the key 'labels'"),
        ({"labels": np.arange(5)}, r"labels have the shape \[5\]; they need \[8\], one per embedding"),
        ({"labels": np.linspace(0, 1, 8)}, "labels have the type float64, not integers or texts"),
        ({"labels": np.array(LABELS, object)}, "labels are Python objects, .* may run a program; .*dtype=str"),
        ({"labels": np.array(["cat", "", *LABELS[2:]])}, "1 label of 8 are empty, row 1 first"),
        ({"labels": np.array(["cat", "nan", *LABELS[2:]])}, "1 label of 8 are empty, row 1 first, 'nan'; remove these"),
        ({"labels": np.arange(8) > 3}, r"labels have the type bool, .*: labels.astype\(int\), or labels.astype"),
        ({"labels": np.array(["cat"] * 8)}, "found 1 class, cat; training needs two or more"),
        ({"labels": np.arange(8)}, "no class has two of the 2 test vectors, so no query finds its class"),
        ({"embeddings": np.where(ROWS > 15, np.nan, ROWS)}, r"3 of 8 vectors contain NaN .*, row 5 \(5\) first"),
        ({"embeddings": np.full((8, 3), 1e300)}, "8 of 8 vectors contain NaN or infinity"),
        ({"ids": np.array(list("abcabcde"))}, "3 ids shared by several vectors, 'a' by the rows 0 and 3"),
        ({"ids": np.array(["", *"bcdefgh"])}, "1 id of 8 are empty, row 0 first"),
        ({"ids": np.array(["\ud800", *"bcdefgh"])}, "ids contain text that is not valid Unicode"),
        ({"split": np.array(["train"] * 7 + ["tset"])}, "split of row 7: no part 'tset'; nearest: test"),
        ({"split": np.array(["train"] * 8)}, "split has no 'test'; found train; it needs train and test"),
        ({"groups": np.array([""] * 8)}, "groups are empty in all rows; fill them, or delete the key"),
        ({"groups": np.array(["nan", "None"] * 4)}, "groups are empty in all rows"),
        ({"groups": np.array(["one"] * 8)}, "has no gallery, because all 3 entries belong to its own group, 'one'"),
    ],
)
def test_wrong_content_is_described_in_one_line(tmp_path, changes, message):
    file = npz(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as raised:
        vectors(path=str(file), train_fraction=0.7)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(file))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["cat", "dog", None, *LABELS[3:]]}, "labels: 1 row without a value, row 2 first"),
        ({"embeddings": [[1.0, 2.0], [3.0]], "labels": None}, "are lists of 1 to 2 numbers; they need one length"),
        ({"embeddings": [[1.0, None], [3.0, 4.0]], "labels": None}, "1 number of the vectors are missing"),
        ({"embeddings": [], "labels": None}, r"embeddings have the shape \[0, 0\]"),
        ({"embeddings": None, "x0": ROWS[:, 0], "x1": ROWS[:, 1]}, "the keys labels, x0, x1; if each column is one"),
    ],
)
def test_wrong_content_of_parquet_is_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_vectors(parquet(tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.npz", None, "no such file; wanted vectors:FILE, a .npz, .parquet, .safetensors"),
        ("", None, "not a regular file"),
        ("mine.csv", b"1,2", "its name has no ending of a vector file"),
        ("mine.npz", b"\x93NUMPY\x01\x00", r"not a .npz file; write it with numpy.savez\(FILE, embeddings"),
        ("mine.npz", b"PK\x05\x06" + bytes(18), "no key 'embeddings', .* among the keys none"),
        ("mine.parquet", b"no such content" * 9, "cannot be read as a .parquet file"),
        ("mine.safetensors", b"no such content" * 9, "cannot be read as a .safetensors file"),
    ],
)
def test_other_files_are_not_read_as_vectors(tmp_path, name, content, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / name)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r'mine.parquet needs the package .pyarrow.*"pml-ext\[parquet\]"'):
        read_vectors(tmp_path / "mine.parquet")


def test_an_array_with_a_false_size_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (4_000_000_000, 1024)}
    )
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("embeddings.npy", header.getvalue() + bytes(4096))
    with pytest.raises(DataError, match=r"embeddings claim 16,384,000,000,000 bytes, .* but have 4,096; write"):
        read_vectors(tmp_path / "mine.npz")


# Splits


def test_vectors_are_split_by_their_file(tmp_path):
    splits = vectors(tmp_path, path=str(npz(tmp_path, split=np.array([*PARTS[:3], "validation", *PARTS[4:]]))))
    ids = [part.ids.tolist() for part in (splits.train, splits.validation, splits.test)]
    assert (ids, splits.vector_size) == ([["0", "1", "2"], ["3"], ["4", "5", "6", "7"]], 3)
    vector, label = splits.test[0]
    assert (vector.tolist(), splits.test.class_names[label]) == ([12.0, 13.0, 14.0], "owl")


def test_vectors_are_split_by_class_or_image(tmp_path):
    file = str(npz(tmp_path))
    by_class = vectors(path=file, train_fraction=0.7)
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = vectors(path=file, split="image", seed=1)
    assert set(by_image.train.labels) == set(by_image.test.labels)
    assert not set(by_image.train.ids) & set(by_image.test.ids)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"texts": np.arange(3)}, "mine.npz: not used: texts; the keys used are embeddings"),
        ({"embeddings": ROWS * ~np.isin(range(8), [2, 5])[:, None]}, "2 of 8 vectors are all 0, 2 first; they"),
        (
            {"labels": np.array([*"abcd", "e", "e", "f", "f"]), "split": np.array(PARTS)},
            "no class has two of the 4 training vectors, so there are no positive pairs",
        ),
    ],
)
def test_unused_keys_and_doubtful_vectors_are_noted(tmp_path, changes, text):
    assert text in vectors(path=str(npz(tmp_path, **changes)), split=None if "split" in changes else "image").note


@pytest.mark.parametrize("option", [{"split": "class"}, {"train_fraction": 0.3}, {"seed": 0}])
def test_split_settings_conflict_with_the_file(tmp_path, option):
    file = npz(tmp_path, split=np.array(PARTS))
    with pytest.raises(ConfigError, match=f"{next(iter(option))}: found .* has its own split; remove one of the two"):
        vectors(path=str(file), **option)

"""Files of vectors: three formats with one content, and what is refused, each in one line."""

import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch

from pml_ext.errors import DataError, MissingExtraError
from pml_ext_train.data import is_vector_file, read_vectors, vectors

from .vector_files import LABELS, PARTS, ROWS, columns, npz


def parquet(place, fixed_size=False, **changes):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    given = columns(**changes)
    rows = given.pop("embeddings").tolist()
    kind = arrow.list_(arrow.float32(), 3) if fixed_size else arrow.list_(arrow.float64())
    arrays = {"embeddings": arrow.array(rows, kind)}
    arrays |= {name: arrow.array(list(column)) for name, column in given.items()}
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
def test_the_formats_have_the_same_content(tmp_path, write):
    file = read_vectors(write(tmp_path, ids=list("abcdefgh"), split=PARTS, groups=["", *"xyzxyz", ""]))
    assert file.embeddings.dtype == np.float32
    np.testing.assert_array_equal(file.embeddings, columns()["embeddings"])
    assert file.class_names == ["cat", "dog", "owl"]
    assert file.labels.tolist() == [0, 1, 0, 1, 2, 2, 2, 0]
    assert file.ids.tolist() == list("abcdefgh")
    assert file.split.tolist() == PARTS
    assert file.groups.tolist() == ["", *"xyzxyz", ""]
    assert is_vector_file(file.path)


def test_lists_of_fixed_size_are_read(tmp_path):
    file = read_vectors(parquet(tmp_path, fixed_size=True))
    assert file.embeddings.flags.writeable  # torch warns of arrays that are not
    np.testing.assert_array_equal(file.embeddings, columns()["embeddings"])


def test_integers_are_sorted_as_numbers(tmp_path):
    file = read_vectors(npz(tmp_path, labels=np.array([10, 9, 10, 9, 2, 2, 2, 2]), ids=np.arange(8) * 5))
    assert file.class_names == ["2", "9", "10"]
    assert file.ids.tolist()[:3] == ["0", "5", "10"]


def test_ids_are_row_numbers_and_labels_optional(tmp_path):
    file = read_vectors(npz(tmp_path, labels=None))
    assert file.ids.tolist() == [str(row) for row in range(8)]
    assert file.labels is None
    with pytest.raises(DataError, match=r"mine.npz: no labels; training needs the key 'labels'"):
        vectors(path=str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": ROWS[0]}, r"embeddings have the shape \[3\]; wanted \[N, D\]"),
        ({"embeddings": ROWS[:, :0]}, r"embeddings have the shape \[8, 0\]; wanted"),
        ({"embeddings": ROWS.astype(str)}, "embeddings are of the type <U32; wanted numbers"),
        ({"embeddings": None}, "no key 'embeddings', .* found the keys labels"),
        ({"labels": np.arange(5)}, r"labels have the shape \[5\]; wanted \[8\], one for each embedding"),
        ({"labels": np.linspace(0, 1, 8)}, "labels are of the type float64; wanted integers or texts"),
        ({"labels": np.array(LABELS, object)}, "labels are Python objects, .* may run a program; .*dtype=str"),
        ({"labels": np.array(["cat", "", *LABELS[2:]])}, "1 label of 8 are empty, row 1 first"),
        ({"embeddings": np.where(ROWS > 15, np.nan, ROWS)}, r"3 of 8 vectors have NaN or infinity, row 5 \(5\) first"),
        ({"embeddings": np.full((8, 3), 1e300)}, "8 of 8 vectors have NaN or infinity"),
        ({"ids": np.array(list("abcabcde"))}, "3 ids of several vectors, 'a' first, of the rows 0 and 3"),
        ({"ids": np.array(["", *"bcdefgh"])}, "1 id of 8 are empty, row 0 first"),
        ({"split": np.array(["train"] * 7 + ["tset"])}, "split of row 7: no part 'tset'; nearest: test"),
        ({"split": np.array(["train"] * 8)}, "split has no 'test'; found train; wanted train and test"),
        ({"groups": np.array([""] * 8)}, "groups are empty in all rows; fill them, or delete the key"),
        ({"groups": np.array(["one"] * 8)}, "has no gallery: all 3 of it are of its own group, 'one'"),
        ({"labels": np.array(["cat"] * 8)}, "found 1 class, cat; wanted two or more"),
        ({"labels": np.arange(8) > 3}, r"labels are of the type bool; .*: labels.astype\(int\), or labels.astype"),
        (
            {"labels": np.array(["cat", "nan", *LABELS[2:]])},
            "1 label of 8 are empty, row 1 first, 'nan'; leave these rows",
        ),
        ({"labels": np.arange(8)}, "no class has two of the 2 vectors to test with; wanted two or more per class"),
        ({"ids": np.array(["\ud800", *"bcdefgh"])}, "ids have texts that are no Unicode"),
        ({"groups": np.array(["nan", "None"] * 4)}, "groups are empty in all rows"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, changes, message):
    file = npz(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as raised:
        vectors(path=str(file), train_fraction=0.7)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(file))


def test_groups_of_pandas_that_are_missing(tmp_path):
    file = read_vectors(npz(tmp_path, groups=np.array(["a", "nan", "None", "", "<NA>", "b", "b", "c"])))
    assert file.groups.tolist() == ["a", "", "", "", "", "b", "b", "c"]


def test_a_column_for_each_number_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    table = arrow.table({"labels": LABELS, "x0": ROWS[:, 0], "x1": ROWS[:, 1]})
    write_table(table, tmp_path / "mine.parquet")
    with pytest.raises(DataError, match="found the keys labels, x0, x1; a column for each number of a vector"):
        read_vectors(tmp_path / "mine.parquet")


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no.npz: no such file; wanted vectors:FILE, a .npz, .parquet, .safetensors"):
        read_vectors(tmp_path / "no.npz")
    with pytest.raises(DataError, match="not a regular file"):
        read_vectors(tmp_path)
    (tmp_path / "mine.csv").write_text("1,2")
    with pytest.raises(DataError, match="no file of vectors by its name"):
        read_vectors(tmp_path / "mine.csv")
    with (tmp_path / "one.npz").open("wb") as opened:
        np.save(opened, ROWS)
    with pytest.raises(DataError, match="a single array; wanted numpy.savez"):
        read_vectors(tmp_path / "one.npz")
    for ending in ("npz", "parquet", "safetensors"):
        if ending == "parquet":
            pytest.importorskip("pyarrow", reason="needs the extra parquet")
        (tmp_path / f"mine.{ending}").write_bytes(b"no such content" * 9)
        with pytest.raises(DataError, match=f"cannot be read as a .{ending} file"):
            read_vectors(tmp_path / f"mine.{ending}")


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r'mine.parquet needs the package .pyarrow.*"pml-ext\[parquet\]"'):
        read_vectors(tmp_path / "mine.parquet")


def test_rows_without_a_value_are_refused(tmp_path):
    with pytest.raises(DataError, match="labels: 1 row without a value, row 2 first"):
        read_vectors(parquet(tmp_path, labels=["cat", "dog", None, *LABELS[3:]]))


def test_lists_that_are_no_vectors_are_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    lists = arrow.list_(arrow.float32())
    for rows, message in (
        ([[1.0, 2.0], [3.0]], "embeddings are lists of 1 to 2 numbers; wanted one length"),
        ([[1.0, None], [3.0, 4.0]], "embeddings: 1 number of the vectors are missing"),
        ([], r"embeddings have the shape \[0, 0\]"),
    ):
        write_table(arrow.table({"embeddings": arrow.array(rows, lists)}), tmp_path / "mine.parquet")
        with pytest.raises(DataError, match=message):
            read_vectors(tmp_path / "mine.parquet")


def test_categories_of_a_table_are_labels(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    table = {"embeddings": ROWS.tolist(), "labels": arrow.array(LABELS).dictionary_encode()}
    write_table(arrow.table(table), tmp_path / "mine.parquet", row_group_size=3)
    assert read_vectors(tmp_path / "mine.parquet").class_names == ["cat", "dog", "owl"]


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (4_000_000_000, 1024)}
    )
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("embeddings.npy", header.getvalue() + bytes(4096))
    with pytest.raises(
        DataError, match=r"mine.npz: embeddings claim 16,384,000,000,000 bytes, .* and have 4,096; write"
    ):
        read_vectors(tmp_path / "mine.npz")

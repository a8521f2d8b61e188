"""The data set of images or vectors without labels."""

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_search.unlabeled import unlabeled

from .photographs import photograph


def test_all_images_below_a_folder(tmp_path):
    for name in ("b.jpg", "a a.PNG", "inner/deeper/c.webp", ".hidden/d.jpg"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        photograph(0, side=16).save(file)
    (tmp_path / "notes.txt").write_text("no image")
    splits = unlabeled(path=str(tmp_path))
    names = [path.relative_to(tmp_path).as_posix() for path in splits.train.paths]
    assert names == ["a a.PNG", "b.jpg", "inner/deeper/c.webp"]
    assert not splits.labeled
    assert splits.tested() == {}


def test_vectors_of_a_file_and_their_ids(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "rows.npz", embeddings=rows, ids=["a", "b", "c", "d"], labels=[0, 0, 1, 1])
    splits = unlabeled(tmp_path, "rows.npz")
    assert np.array_equal(splits.train.vectors.numpy(), rows)
    assert splits.train.ids.tolist() == ["a", "b", "c", "d"]
    assert splits.train.labels.tolist() == [0, 0, 0, 0]
    assert not splits.labeled


def test_too_few_images_are_named(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        unlabeled(tmp_path, "missing")
    with pytest.raises(DataError, match="no images; wanted files that end in .jpg, .png, ..., and found nothing"):
        unlabeled(path=str(tmp_path))
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"; found .*notes.txt: not named like an image"):
        unlabeled(path=str(tmp_path))
    photograph(0, side=16).save(tmp_path / "one.png")
    with pytest.raises(DataError, match="one image, one.png; a search needs at least two"):
        unlabeled(path=str(tmp_path))
    np.savez(tmp_path / "one.npz", embeddings=np.ones((1, 3), dtype=np.float32))
    with pytest.raises(DataError, match="1 vector; a search needs at least two"):
        unlabeled(tmp_path, "one.npz")

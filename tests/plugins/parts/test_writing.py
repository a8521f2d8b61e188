"""Embeddings as Parquet: the same rows however a listing is cut, resumed and killed."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pml_ext.errors import ConfigError
from pml_ext_parts.listing import listed
from pml_ext_search.embedding.reading import listed as images_of

from ..search.conftest import killed
from .rows import rows_of

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")


def stamps(place):
    return {file.name: file.stat().st_mtime_ns for file in place.iterdir()}


pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_have_the_rows_of_one_pass(make, folder, tmp_path, whole, parts):
    run = make()
    for part in range(parts, 0, -1):
        run.embed_part(folder, part, parts, tmp_path / "parts")
    found = rows_of(tmp_path / "parts")
    embedded = run.embed_folder(folder)
    assert found == rows_of(whole)
    assert found["path"] == list(embedded.paths)
    assert found["class"] == list(embedded.classes)
    assert np.array_equal(np.array(found["embedding"], dtype=np.float32), embedded.embeddings.numpy())
    metadata = [parquet.read_metadata(file).metadata[b"pml_ext"] for file in whole.iterdir()]
    assert [name for about in metadata for name in json.loads(about)["skipped"]] == ["2/broken.png"]


def test_only_files_of_changed_images_are_rewritten(make, folder, tmp_path):
    run = make()
    images = tmp_path / "some images"
    out = tmp_path / "parts"
    shutil.copytree(folder, images)
    run.embed_part(images, out=out)
    before = stamps(out)
    run.embed_part(images, 1, 2, out)
    assert stamps(out) == before
    changed = sorted(images.rglob("*.png"))[5]
    shutil.copy(sorted(images.rglob("*.png"))[100], changed)
    next(out.glob("*00003-of*")).unlink()
    run.embed_part(images, out=out)
    assert {name[11:16] for name, stamp in stamps(out).items() if before[name] != stamp} == {"00000", "00003"}
    (images / "9" / "zzz.png").write_bytes(changed.read_bytes())
    with pytest.raises(ConfigError, match="another listing of images; type -o FOLDER"):
        run.embed_part(images, out=out)


def test_a_killed_part_resumes_beside_another(make, tmp_path, folder):
    images = tmp_path / "images"
    out = tmp_path / "parts"
    for copy in range(8):
        shutil.copytree(folder, images / str(copy))
    killed(lambda: make(workers=0).embed_part(images, out=out), 5)
    before = stamps(out)
    written = {name for name in before if name.startswith("embeddings")}
    total = len(listed(images_of(images)).segments)
    assert 0 < len(written) < total
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda name: make(name, workers=0).embed_part(images, out=out), ["one", "two"])]
    assert {name for name in written if stamps(out)[name] != before[name]} == set()
    paths = rows_of(out)["path"]
    assert len(paths) == len(set(paths)) == 8 * 200

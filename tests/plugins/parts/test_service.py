"""The service ``parts``: what was written is told, and images are embedded without a file."""

import pytest

from pml_ext_parts import service
from pml_ext_search.embedding.reading import listed

from .rows import rows_of

pytest.importorskip("pyarrow", reason="needs the extra parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_parts_tell_their_images_and_files(make, folder, tmp_path):
    embedder = make().images
    written = [service.write(embedder, listed(folder), part, 3, tmp_path) for part in (1, 2, 3)]
    assert sum(each.images for each in written) == 200
    assert sum(each.files for each in written) == len([*tmp_path.glob("*.parquet")])
    assert {each.files_of_all_parts for each in written} == {len([*tmp_path.glob("*.parquet")])}


def test_images_are_embedded_without_files(make, folder, whole):
    found = service.embedded(make().images, listed(folder))
    assert found.folder == str(folder)
    names = []
    for rows in found.rows:
        names += rows.names
    assert names == rows_of(whole)["path"]

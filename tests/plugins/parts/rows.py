"""The rows of files of embeddings, and shards of images."""

import io
import tarfile


def rows_of(place):
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.concat_tables([parquet.read_table(file) for file in sorted(place.glob("*.parquet"))])
    return table.select(["path", "class", "embedding"]).to_pydict()


def write_shard(place, contents):
    """Write files into a tar file."""
    with tarfile.open(place, "w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

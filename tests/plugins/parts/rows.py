"""The rows of files of embeddings."""


def rows_of(place):
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.concat_tables([parquet.read_table(file) for file in sorted(place.glob("*.parquet"))])
    return table.select(["path", "class", "embedding"]).to_pydict()

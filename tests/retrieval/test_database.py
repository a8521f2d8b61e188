"""An index as a table of LanceDB."""

import json
import sys

import pytest
import torch

from pml_ext.errors import ConfigError, MissingExtraError


def test_a_table_of_lancedb_gives_the_same_neighbors(command, indexed, folder, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    run, gallery = indexed
    where = f"lancedb:{tmp_path / 'price $5_$6'}"
    done = command("index", run.folder, "--export", where)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"200 images written: {where}, table images"
    assert second == "its answers are as near as those of exact search for 100.0% of a sample"
    told = json.loads(command("index", run.folder, "--export", where, "--json").stdout)
    assert told == {"export": where, "rows": 200, "agreement": 1.0}
    table = lancedb.connect(tmp_path / "price $5_$6").open_table("images")
    query = folder / gallery.embedded.paths[17]
    rows = table.search(run.embed(query)[0].numpy()).limit(9).to_list()
    assert rows[0]["path"] == gallery.embedded.paths[17]
    (answer,) = run.query(query, 8, gallery)
    assert [(row["id"], row["path"], row["class"]) for row in rows[1:]] == [
        *zip(answer.ids, answer.paths, answer.classes, strict=True)
    ]
    torch.testing.assert_close(torch.tensor(rows[0]["vector"]), gallery.embedded.embeddings[17])


def test_another_database_and_no_lancedb_are_told(indexed, monkeypatch):
    with pytest.raises(ConfigError, match="--export postgres:x: wanted lancedb:DIR"):
        indexed[0].export_index("postgres:x")
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingExtraError, match=r"pip install .pml-ext\[lancedb\]"):
        indexed[0].export_index("lancedb:x")

"""Stores of others: faults are found by the contract and where answers are used, and nothing wrong is copied."""

import inspect
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError, PluginError, UnknownNameError
from pml_ext.plugin import SearchFilter
from pml_ext.testing.contracts import Named
from pml_ext_search.collection.embedded import Embedded
from pml_ext_stores import mirror
from pml_ext_stores.mirror import MirroredStore
from pml_ext_stores.validation import CheckedStore, checked, open_checked
from pml_ext_train.cli.targets import check_named

from . import careless
from .opened import rows

OWNER = "the store 'mine' of the plugin 'theirs'"


pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.fixture
def install_stores(install_plugin):
    """Installs the careless stores as a plugin, with their names in lower case as schemes."""

    def install(module, *names):
        schemes = ", ".join(f"{name.lower()!r}: {name}" for name in names)
        hook = "\nfrom pml_ext.plugin import hookimpl\n\n@hookimpl\ndef pml_ext_stores():\n    return {%s}\n"
        install_plugin(module, inspect.getsource(careless) + hook % schemes)

    return install


def opened(factory, tmp_path):
    return checked(factory, (str(tmp_path), "table", 8), OWNER)


def test_what_a_store_prints_or_changes_is_harmless(tmp_path, capsys):
    store = opened(careless.Prints, tmp_path)
    images = rows(30)
    store.write([images])
    queries = images.vectors[:3]
    queries.flags.writeable = False
    assert store.search(queries, 1, SearchFilter())[2][0].id == 2
    assert capsys.readouterr() == ("", "searching ...\n")


class Overlapping(careless.Lines):
    """A store whose second call begins in the first and ends after it."""

    calls = 0
    has_second = threading.Event()
    first_ended = threading.Event()

    def count(self):
        self.calls += 1
        if self.calls == 1:
            self.second()
            self.has_second.wait()
        else:
            self.has_second.set()
            self.first_ended.wait()
        return super().count()


def test_overlapping_threads_leave_stdout_unchanged(tmp_path):
    store = opened(Overlapping, tmp_path)
    before = sys.stdout
    with ThreadPoolExecutor(2) as threads:
        store._store.second = lambda: threads.submit(store.count)
        threads.submit(store.count).result()
        store._store.first_ended.set()
    assert sys.stdout is before


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(("error", "shown"), [("KeyError('no')", "KeyError: 'no'"), ("SystemExit(3)", "SystemExit: 3")])
def test_a_failure_names_the_line(error, shown, install_plugin, tmp_path):
    source = f"""
from pml_ext.plugin import hookimpl

class Fails:
    def count(self):
        raise {error}
    write = search = delete = checksums = count

def opened(address, table, size):
    return Fails() if size else 1 / size

@hookimpl
def pml_ext_stores():
    return {{"fails": opened}}
"""
    install_plugin("theirs", source)
    store = open_checked("fails", str(tmp_path), "table", 8)
    owner = "the store 'fails' of the plugin 'theirs'"
    with pytest.raises(PluginError) as raised:
        store.count()
    place = "Fails.count of the plugin 'theirs', theirs/__init__.py:6"
    assert str(raised.value) == f"count of {owner} failed: {shown}, in {place}"
    with pytest.raises(PluginError, match=f"opening {owner} failed: ZeroDivisionError.* theirs/__init__.py:10"):
        open_checked("fails", str(tmp_path), "table", 0)


def test_a_store_without_a_method_is_refused(tmp_path):
    with pytest.raises(
        PluginError, match="'theirs' is a NoneType without the method write and search and delete and count"
    ):
        opened(lambda address, table, size: None, tmp_path)


REFUSED = {
    "WritesNothing": "the store 'writesnothing' of the plugin 'theirs' has 0 images after write and delete, of 200",
    "Squared": "search of the store 'squared' of the plugin 'theirs' returned the distance",
    "UnknownIds": "search of the store 'unknownids' of the plugin 'theirs' returned the id",
    "FindsNothing": "search of the store 'findsnothing' of the plugin 'theirs' returned None",
}


@pytest.mark.usefixtures("isolated_registry")
def test_the_index_is_not_copied_to_careless_stores(install_stores, make, folder, tmp_path):
    install_stores("theirs", "Lines", *REFUSED)
    run = make(indexed=folder)
    for name, text in REFUSED.items():
        with pytest.raises(PluginError, match=text):
            run.copy_to_store(f"{name.lower()}:{tmp_path / name}")
    changes, recall = run.copy_to_store(f"lines:{tmp_path / 'lines'}")
    assert (changes.new, recall) == (200, 1.0)


@pytest.mark.usefixtures("isolated_registry")
def test_a_shared_scheme_is_named_with_its_plugin(install_stores, make, folder, tmp_path):
    install_stores("theirs", "Lines")
    install_stores("others", "Lines")
    run = make(indexed=folder)
    address = f"lines:{tmp_path / 'lines'}"
    with pytest.raises(PluginError, match="'lines' is claimed by two plugins; use"):
        run.open_store(address)
    assert run.copy_to_store(f"others:{address}")[0].new == 200
    assert run.open_store(f"theirs:{address}").count() == 200
    with pytest.raises(ConfigError, match="wanted SCHEME:ADDRESS, with one of"):
        run.open_store("no address")


BUGS = {
    "OneTable": r"count\(\) is 43 in a table of another name; each state of a network has its own; wanted 0",
    "Forgets": r"count\(\) is 0 opened once more; wanted 43",
    "WritesNothing": "write reads 0 of 2 batches; wanted all",
    "WritesFirst": "write reads 1 of 2 batches; wanted all",
    "Appends": r"checksums\(\) has None for the image 25 after the write of two batches; wanted 4294967120",
    "HidesErrors": "write returns although reading the batches failed; wanted the error",
    "ChangesErrors": "an error while batches are read becomes .* failed: KeyError: 'rows'; wanted the same error",
    "LosesBefore": "a write that is stopped loses 44 images that were written before; wanted all kept",
    "DeletesNothing": r"count\(\) is 45 after delete\(\[0, 1, 999\]\), where 999 is unknown; wanted 43",
    "DeletesKnown": "delete of the store failed: KeyError: 999",
    "NoCount": "count of the store returned None; wanted the number of images",
    "NoChecksums": "checksums of the store returned None; wanted a mapping from ids to checksums",
    "TextChecksums": r"checksums of the store returned \{'0': 4294967295\}; wanted whole numbers",
    "FindsNothing": "search of the store returned None for 2 vectors; wanted a list for each vector",
    "FindsFewer": "search of the store returned 1 list for 2 vectors",
    "Pairs": r"search of the store returned \(\d+, 0.\d+\); wanted SearchResult\(id, path",
    "FindsAll": "search of the store returned 40 images for a vector; wanted at most k = 10",
    "FarthestFirst": r"returned the distance \d.\d+ after \d.\d+; wanted the nearest image first",
    "NotTheNearest": r"search with SearchFilter\(within=None, radius=None\) finds images at .*; the nearest ones",
    "NotANumber": "returned .*distance=nan.*; wanted SearchResult.* with a finite distance",
    "Squared": r"returned the distance 0.\d+ between vectors that are 0.\d+ apart; wanted Euclidean distances",
    "UnknownIds": "returned the id 10000.*; wanted an id that was written and not deleted",
    "OtherPaths": r"search returns path and class \('.*JPG'",
    "AnyClass": "returned an image of the class .* within 'cats'; wanted images of the class alone",
    "AnyRadius": r"returned an image at the distance 1.* for the radius 1.2; wanted no image beyond it",
}


def result_of(factory):
    (result,) = [each for each in check_named(Named("store", "tried", factory, "mine")) if each.check == "check_store"]
    return result


@pytest.mark.parametrize(("name", "text"), BUGS.items())
def test_a_fault_of_a_store_is_found(name, text):
    result = result_of(getattr(careless, name))
    assert result.status == "failed"
    assert re.search(text, result.text), result.text


@pytest.mark.parametrize("factory", [careless.Lines, careless.Prints])
def test_a_store_without_faults_passes(factory, capsys):
    result = result_of(factory)
    assert result.text == "40 made-up images written, searched, replaced, deleted and reopened"
    assert result.status == "passed"
    assert capsys.readouterr().out == ""


def test_a_store_that_needs_a_server_is_skipped():
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    result = result_of(registry.factory("store", "pgvector"))
    assert result.status == "skipped"
    assert "it opens no table in a folder" in result.text
    assert "contract.check_contract(factory, address)" in result.text


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError, "skipped", "(FOLDER is no server)"),
        (DataError, "skipped", "(FOLDER is no server)"),
        (ValueError, "failed", "ValueError"),
    ],
)
def test_only_a_refused_address_is_skipped(error, status, text):
    def refuses(address, table, size):
        raise error(f"{address} is no server")

    result = result_of(refuses)
    assert (result.status, text in result.text) == (status, True)


def index_of(count):
    points = torch.nn.functional.normalize(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    paths = [f"{number % 3}/{number:02d}.png" for number in range(count)]
    stats = np.ones((count, 2), dtype=np.int64)
    return Embedded(Path("photos"), paths, points[:count], stats=stats, ids=np.arange(count) + 100)


@pytest.fixture
def store(tmp_path):
    return careless.Lines(str(tmp_path), "table", 6)


def test_only_what_differs_is_written(store, monkeypatch):
    monkeypatch.setattr("pml_ext_stores.mirror.BATCH", 20)
    checked = MirroredStore(CheckedStore(store, "the store"), "")
    sizes = []
    write = store.write
    monkeypatch.setattr(store, "write", lambda rows: write(sizes.append(len(each.ids)) or each for each in rows))
    assert tuple(checked.update(index_of(45))) == (45, 0, 0, 0)
    assert sizes == [20, 20, 5]
    assert tuple(checked.update(index_of(45))) == (0, 0, 0, 45)
    changed = index_of(50)
    changed.stats[3] = 7
    assert tuple(checked.update(changed)) == (5, 1, 0, 44)
    assert tuple(checked.update(index_of(10))) == (0, 1, 40, 9)
    assert sorted(store.rows) == list(range(100, 110))
    monkeypatch.setattr(store, "delete", lambda ids: None)
    with pytest.raises(PluginError, match="the store has 10 images after write and delete, of 9 in the index"):
        checked.update(index_of(9))


def test_the_recall_is_against_exact_search(store, monkeypatch):
    index = index_of(50)
    checked = MirroredStore(CheckedStore(store, "the store"), "")
    checked.update(index)
    assert checked.recall_at_10(index) == 1
    assert checked.recall_at_10(index_of(1)) is None
    search = store.search
    monkeypatch.setattr(store, "search", lambda *given: [found[::2] for found in search(*given)])
    assert 0.2 < checked.recall_at_10(index) < 0.8
    with pytest.raises(PluginError, match="the id 1..; wanted an id that was written"):
        checked.recall_at_10(index_of(20))


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("photos", "photos: wanted SCHEME:ADDRESS, with one of lancedb:, pgvector:, qdrant:"),
        ("lancd:photos", "no store 'lancd'; nearest: lancedb"),
    ],
)
def test_an_address_has_a_known_scheme(address, text):
    with pytest.raises((ConfigError, UnknownNameError), match=text):
        mirror.open(address, "0123", 6)

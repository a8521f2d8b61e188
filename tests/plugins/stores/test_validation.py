"""Answers of stores are checked where they are used: errors name the store, its plugin and the method."""

import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pml_ext.errors import ConfigError, DataError, PluginError
from pml_ext.plugin import SearchFilter
from pml_ext_stores.validation import checked, open_checked

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


def test_a_right_store_answers_as_it_would_alone(tmp_path):
    store = opened(careless.Lines, tmp_path)
    images = rows(30)
    store.write([images])
    store.delete([0, 999])
    alone = careless.Lines(str(tmp_path), "table", 8)
    assert (store.count(), dict(store.checksums())) == (29, alone.checksums())
    where = SearchFilter("cats", 1.5)
    assert store.search(images.vectors[:3], 5, where) == alone.search(images.vectors[:3], 5, where)
    store.check_count(29)
    store.check_ids([1, 2], alone.rows)
    store.check_distances([0.5, 1.0], [0.5, 1.001])


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


def test_threads_of_a_page_leave_stdout_as_it_was(tmp_path):
    store = opened(Overlapping, tmp_path)
    before = sys.stdout
    with ThreadPoolExecutor(2) as threads:
        store._store.second = lambda: threads.submit(store.count)
        threads.submit(store.count).result()
        store._store.first_ended.set()
    assert sys.stdout is before


WRONG = {
    "FindsNothing": "search of the store 'mine' of the plugin 'theirs' returned None for 2 vectors; wanted a list for",
    "FindsFewer": "search of the store 'mine' of the plugin 'theirs' returned 1 list for 2 vectors",
    "Pairs": r"search of the store 'mine' .* returned \(0, 0.0\); wanted SearchResult",
    "FindsAll": "search of the store 'mine' .* returned 30 images for a vector; wanted at most k = 5",
    "FarthestFirst": "search of the store 'mine' .* wanted the nearest image first",
    "NotANumber": "search of the store 'mine' .* with a finite distance",
    "AnyClass": "search of the store 'mine' .* returned an image of the class .* within 'cats'",
    "AnyRadius": "search of the store 'mine' .* for the radius 0.7; wanted no image beyond it",
    "NoCount": "count of the store 'mine' .* returned None; wanted the number of images",
    "NoChecksums": "checksums of the store 'mine' .* returned None; wanted a mapping from ids to checksums",
    "TextChecksums": "checksums of the store 'mine' .* returned {'0': 0}; wanted whole numbers, as they were written",
}


@pytest.mark.parametrize(("name", "text"), WRONG.items())
def test_a_wrong_answer_names_store_plugin_and_method(name, text, tmp_path):
    store = opened(getattr(careless, name), tmp_path)
    images = rows(30)
    store.write([images])

    def ask():
        for where in (SearchFilter(), SearchFilter("cats"), SearchFilter(None, 0.7)):
            store.search(images.vectors[:2], 5, where)
        store.count()
        store.checksums()

    with pytest.raises(PluginError, match=text):
        ask()


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


def test_an_error_with_a_text_for_the_user_stays(tmp_path):
    def refuses(address, table, size):
        raise DataError("no server there")

    with pytest.raises(DataError, match="^no server there$"):
        opened(refuses, tmp_path)


def test_a_store_without_a_method_is_refused(tmp_path):
    with pytest.raises(PluginError, match="'theirs' is a NoneType without the method write and search and delete"):
        opened(lambda address, table, size: None, tmp_path)


def test_what_differs_from_the_index_is_refused(tmp_path):
    store = opened(careless.Lines, tmp_path)
    store.write([rows(3)])
    with pytest.raises(PluginError, match="has 3 images after write and delete, of 4 in the index: its write, delete"):
        store.check_count(4)
    with pytest.raises(PluginError, match="returned the id 7; wanted an id that was written and not deleted"):
        store.check_ids([1, 7], {1: 0})
    with pytest.raises(PluginError, match="the distance 0.25 between vectors that are 0.5 apart; wanted Euclidean"):
        store.check_distances([0.1, 0.25], [0.1, 0.5])


REFUSED = {
    "WritesNothing": "the store 'writesnothing' of the plugin 'theirs' has 0 images after write and delete, of 200",
    "WritesHalf": "the store 'writeshalf' of the plugin 'theirs' has 100 images",
    "Squared": "search of the store 'squared' of the plugin 'theirs' returned the distance",
    "UnknownIds": "search of the store 'unknownids' of the plugin 'theirs' returned the id",
    "FindsNothing": "search of the store 'findsnothing' of the plugin 'theirs' returned None",
}


@pytest.mark.usefixtures("isolated_registry")
def test_the_index_is_not_copied_to_careless_stores(install_stores, make, folder, tmp_path):
    install_stores("theirs", "Lines", *REFUSED)
    run = make()
    run.index(folder)
    before = run.gallery().embedded
    for name, text in REFUSED.items():
        with pytest.raises(PluginError, match=text):
            run.copy_to_store(f"{name.lower()}:{tmp_path / name}")
    changes, recall = run.copy_to_store(f"lines:{tmp_path / 'lines'}")
    assert (changes.new, recall) == (200, 1.0)
    assert run.gallery().embedded.paths == before.paths
    photo = folder / "3" / "0003.png"
    (mine,) = run.query(photo, 3)
    (theirs,) = run.query(photo, 3, store=f"lines:{tmp_path / 'lines'}")
    assert mine.paths == theirs.paths


@pytest.mark.usefixtures("isolated_registry")
def test_a_scheme_of_two_plugins_is_reached_by_its_plugin(install_stores, make, folder, tmp_path):
    install_stores("theirs", "Lines")
    install_stores("others", "Lines")
    run = make()
    run.index(folder)
    address = f"lines:{tmp_path / 'lines'}"
    with pytest.raises(PluginError, match="'lines' is claimed by two plugins; use"):
        run.open_store(address)
    assert run.copy_to_store(f"others:{address}")[0].new == 200
    assert run.open_store(f"theirs:{address}").count() == 200
    with pytest.raises(ConfigError, match="wanted SCHEME:ADDRESS, with one of"):
        run.open_store("no address")

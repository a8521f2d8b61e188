"""Answers of stores are checked where they are used: errors name the store, its plugin and the method."""

import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pml_ext.errors import ConfigError, PluginError
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
    run = make()
    run.index(folder)
    before = run.gallery().embedded
    for name, text in REFUSED.items():
        with pytest.raises(PluginError, match=text):
            run.copy_to_store(f"{name.lower()}:{tmp_path / name}")
    changes, recall = run.copy_to_store(f"lines:{tmp_path / 'lines'}")
    assert (changes.new, recall) == (200, 1.0)
    assert run.gallery().embedded.paths == before.paths


@pytest.mark.usefixtures("isolated_registry")
def test_a_shared_scheme_is_named_with_its_plugin(install_stores, make, folder, tmp_path):
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

"""The contract of stores: careless ones are found, ours keep it, and one that needs a server is skipped."""

import re

import pytest

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError
from pml_ext.testing.contracts import Named
from pml_ext_train.cli.targets import check_named

from . import careless

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
    assert (result.status, result.text) == (
        "passed",
        "40 made-up images written, searched, replaced, deleted and reopened",
    )
    assert capsys.readouterr().out == ""


def test_a_store_that_needs_a_server_is_skipped():
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    result = result_of(registry.factory("store", "pgvector"))
    assert result.status == "skipped"
    assert "it opens no table in a folder" in result.text
    assert "contract.check_contract(factory, address)" in result.text


@pytest.mark.parametrize("error", [ConfigError, DataError])
def test_a_refused_address_is_a_reason_to_skip(error):
    def refuses(address, table, size):
        raise error(f"{address} is no server")

    result = result_of(refuses)
    assert (result.status, "(FOLDER is no server)" in result.text) == ("skipped", True)


def test_a_factory_that_fails_is_no_skip():
    result = result_of(lambda address, table, size: 1 / 0)
    assert (result.status, "ZeroDivisionError" in result.text) == ("failed", True)

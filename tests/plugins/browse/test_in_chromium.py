"""The page in Chromium: keys, clicks, files, downloads, and how it looks when it is wide, narrow or dark."""

import csv
import shutil
import time
from types import SimpleNamespace

import pytest

from pml_ext import load_run
from pml_ext_browse import open_collections

from ..search.photographs import photograph, write_copies
from .chromium import PROGRAM, chromium
from .conftest import serving

server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome on this machine")]
ODD = "<img src=x onerror=\"document.title=1\"> 'ü' 日本"
KEPT = (
    "[...document.querySelectorAll('#copies input[type=checkbox]:checked')].map(box => box.value.split('.')[1]).join()"
)
FOCUSED = "document.activeElement.title || document.activeElement.tagName"


@pytest.fixture(scope="module")
def site(trained, tmp_path_factory):
    """The page of 36 photographs: two of eight versions, an odd name, names of 250 letters."""
    place = tmp_path_factory.mktemp("chromium")
    folder = place / "photos"
    for number in range(2):
        write_copies(folder / "copies", number)
    (folder / ODD).mkdir()
    for number in range(2, 12):
        photograph(number).save(folder / ODD / f"{number}.png")
        photograph(number + 20).save(folder / "copies" / f"{number}-{'x' * 240}.png")
    run = shutil.copytree(trained / "one", place / "run", ignore=lambda *_: ["collection"])
    load_run(run, "cpu").index(folder)
    collections = open_collections([run], None, "cpu")
    with serving(collections) as here:
        yield SimpleNamespace(address=f"http://127.0.0.1:{here.port}", folder=folder, collection=collections[0])


@pytest.fixture
def browser(site, tmp_path):
    with chromium() as page:
        page.downloads(tmp_path)
        yield page
        assert page.errors == []
        assert page.run("document.title") == "run: browse"  # no name became an element


def find_copies(browser):
    browser.leave(browser.click, "form.options button")
    browser.wait("document.readyState === 'complete' && document.getElementById('copies')")


def rows_of(browser, file):
    browser.wait("true")
    while not file.exists() or list(file.parent.glob("*.crdownload")):
        time.sleep(0.1)
    rows = list(csv.DictReader(file.open(newline="", encoding="utf-8")))
    file.unlink()
    return rows


@pytest.mark.nightly
def test_copies_are_walked_through_by_keys_and_clicks(browser, site, tmp_path):
    browser.open(f"{site.address}/copies")
    find_copies(browser)
    assert browser.run("document.querySelectorAll('.group').length") == 2
    assert browser.run(KEPT) == "0,0"
    browser.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert browser.run(FOCUSED) == browser.run("document.querySelectorAll('.pick')[2].title")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")
    assert browser.run(KEPT) == "2,0"
    browser.press("5", "ArrowLeft", " ")
    assert browser.run(KEPT) == "3,4,0"
    browser.press("a")
    assert browser.run(KEPT) == "0,1,2,3,4,5,6,7,0"
    assert browser.run("document.getElementById('told').textContent").startswith("Group 1: kept are 1, 2, 3")
    browser.press("2", " ")  # the last one stays
    assert browser.run(KEPT) == "1,0"
    assert "One image of each group stays" in browser.run("document.getElementById('told').textContent")
    browser.click(".group:nth-of-type(2) .card:nth-child(3) .pick")
    browser.click(".group:nth-of-type(2) .card:nth-child(4) label")
    assert browser.run(KEPT) == "1,2,3"
    pressed = "[...document.querySelectorAll('.pick')].map(one => one.getAttribute('aria-pressed'))"
    assert browser.run(pressed).count("true") == 3
    browser.open(f"{site.address}/copies")  # choices outlive the page
    assert browser.run(KEPT) == "1,2,3"
    browser.click("#copies button[value=csv]")
    rows = rows_of(browser, tmp_path / "copies.csv")
    titles = browser.run("[...document.querySelectorAll('.pick')].map(one => one.title)")
    kept = [(row["group"], row["path"]) for row in rows if row["keep"] == "yes"]
    assert sorted(kept) == sorted([("1", titles[1]), ("2", titles[10]), ("2", titles[11])])
    browser.click("#forget")
    assert browser.run(KEPT) == "0,0"
    browser.click("#copies button[value=csv]")
    rows = rows_of(browser, tmp_path / "copies.csv")
    assert {row["path"] for row in rows if row["keep"] == "yes"} == {titles[0], titles[8]}


def test_choices_on_other_pages_are_saved_too(browser, site, tmp_path, monkeypatch):
    monkeypatch.setitem(server.Page._render.__globals__["_TEMPLATES"].globals, "GROUPS", 1)
    browser.open(f"{site.address}/copies")
    find_copies(browser)
    browser.press("3")
    first = browser.run("document.querySelectorAll('.pick')[2].title")
    browser.leave(browser.click, "a[rel=next]")
    browser.press("4")
    second = browser.run("document.querySelectorAll('.pick')[3].title")
    browser.click("#copies button[value=csv]")
    assert {row["path"] for row in rows_of(browser, tmp_path / "copies.csv") if row["keep"] == "yes"} == {first, second}


def test_keys_move_from_photograph_to_photograph(browser, site):
    browser.show(1280, 900)
    browser.open(f"{site.address}/?image=0&k=5")
    titles = browser.run("[...document.querySelectorAll('main a.card')].map(one => one.title)")
    nearest = [each.path for each in site.collection.nearest(0, 5)]
    assert titles[:5] == nearest
    browser.press("ArrowRight", "ArrowRight")
    assert browser.run(FOCUSED) == titles[1]
    browser.press("ArrowDown")
    below = browser.run("document.activeElement.getBoundingClientRect().left")
    browser.press("ArrowUp")
    assert browser.run(FOCUSED) == titles[1]
    assert abs(below - browser.run("document.activeElement.getBoundingClientRect().left")) < 60
    browser.press("?")
    assert browser.run("document.getElementById('keys').open")
    assert browser.run("document.activeElement.textContent") == "Close"
    browser.press("Escape")
    assert not browser.run("document.getElementById('keys').open")
    browser.leave(browser.press, "3")
    assert browser.run("document.querySelector('.query img').alt") == nearest[2]
    browser.run("document.querySelector('input[type=number]').focus()")
    browser.press("2")  # into the field
    assert browser.run("document.querySelector('input[type=number]').value").count("2") >= 1
    browser.press("Escape")
    assert browser.run(FOCUSED) == "BODY"
    browser.leave(browser.press, "Escape")
    assert browser.run("location.pathname + location.search") == "/"
    browser.leave(browser.press, "ArrowRight", "Enter")
    assert "image=" in browser.run("location.search")


def test_several_photographs_are_dropped_together(browser, site, tmp_path):
    browser.open(f"{site.address}/")
    files = [site.folder / ODD / "2.png", site.folder / ODD / "3.png", tmp_path / f"{'n' * 200}.txt"]
    files[2].write_text("no image")
    browser.leave(browser.choose, "#drop input[type=file]", *files)
    assert browser.run("[...document.querySelectorAll('article')].map(one => one.querySelector('a.card').title)") == [
        f"{ODD}/2.png",
        f"{ODD}/3.png",
    ]
    assert "not a readable image" in browser.run("document.querySelector('main [role=alert].notice').textContent")
    many = [shutil.copy(files[0], tmp_path / f"{number}.png") for number in range(21)]
    browser.choose("#drop input[type=file]", *many)
    browser.wait("!document.getElementById('too-many').hidden")
    assert browser.run("document.getElementById('too-many').textContent") == "These are 21 files; at most 20 at once."


HAS_THE_NAME = """(() => {
    const page = new XMLHttpRequest();
    page.open("GET", "/clusters?clusters=3", false);
    page.send();
    return page.responseText.includes('value="bee"');
})()"""


def test_names_typed_in_opened_clusters_are_kept(browser, site, tmp_path):
    browser.open(f"{site.address}/clusters?clusters=3&open=1")
    browser.run("document.querySelector('input[name=cluster1]').focus()")
    browser.press("b", "e", "e", "Tab")
    browser.wait(HAS_THE_NAME)  # sent in the background, it may arrive after the next page is asked for
    browser.open(f"{site.address}/clusters?clusters=3")
    assert browser.run("document.querySelector('input[name=cluster1]').value") == "bee"
    browser.click("#names button")
    assert {row["class"] for row in rows_of(browser, tmp_path / "classes.csv")} == {"bee"}
    for number in (1, 2):
        browser.click(f"input[name=join][value='{number}']")
    browser.leave(browser.click, "#join button")
    names = "[...document.querySelectorAll('input[form=names]')].map(one => one.name + one.value).sort().join()"
    assert browser.run(names) == "cluster0,cluster1bee"
    browser.run("document.querySelector('input[name=clusters]').value = 5")
    browser.leave(browser.click, "form.options button")  # another clustering
    assert len(browser.run(names).split(",")) == 5
    assert "bee" in browser.run(names)


def test_labels_are_decided_by_keys(browser, site, tmp_path):
    browser.open(f"{site.address}/labels")
    cards = browser.run("document.querySelectorAll('#labels .card').length")
    titles = browser.run("[...document.querySelectorAll('#labels a')].map(one => one.title)")
    assert cards > 1
    browser.press("a", "k")
    assert browser.run(FOCUSED) == titles[min(2, cards - 1)]
    for _ in range(2):
        told = browser.run("document.getElementById('decided').textContent")
        assert told.startswith(f"2 of these {cards} decided, 1 accepted.")
        browser.open(f"{site.address}/labels")
    browser.click("#labels button")
    rows = rows_of(browser, tmp_path / "labels.csv")
    assert len(rows) == 36
    assert [row["path"] for row in rows if row["path"].split("/")[0] != row["class"]] == titles[:1]


def test_a_sub_folder_is_chosen(browser, site):
    browser.open(f"{site.address}/?image=0")
    browser.leave(
        browser.run,
        "(() => { const list = document.querySelector('select[name=folder]'); "
        "list.selectedIndex = [...list.options].length - 1; list.dispatchEvent(new Event('change')); })()",
    )
    last = sorted({path.rpartition("/")[0] for path in site.collection.paths})[-1]
    titles = browser.run("[...document.querySelectorAll('main a.card')].map(one => one.title)")
    assert titles
    assert all(title.startswith(f"{last}/") for title in titles)
    assert browser.run("document.querySelector('.query img').alt") == site.collection.paths[0]  # the query stays


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_cut_and_everything_has_a_label(browser, site, width, dark):
    browser.show(width, 900, dark)
    for path in (
        "/",
        "/?image=0",
        "/clusters?clusters=3&open=0",
        "/map?method=pca",
        "/answers",
        "/labels",
        "/copies",
        "/?image=-1",
    ):
        browser.open(f"{site.address}{path}")
        assert browser.run("document.documentElement.scrollWidth") <= width, path
        unnamed = browser.run(
            "[...document.querySelectorAll('input:not([type=hidden]), select, button, progress')].filter(one => "
            "!(one.labels && one.labels.length) && !one.getAttribute('aria-label') && !one.textContent.trim())"
            ".map(one => one.outerHTML)"
        )
        assert unnamed == [], path
        assert browser.run("[...document.images].filter(one => !one.alt).length") == 0, path
        assert browser.run("document.querySelectorAll('h1').length") == 1
    browser.errors.clear()  # of the last one, which is refused by 400

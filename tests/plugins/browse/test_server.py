"""The server of the page: what it refuses, and what it gives away."""

import asyncio
import csv
import io
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.registry import service
from pml_ext_browse import commands, open_collections

from .asking import PNG, ask, content_of, post, upload, upload_all
from .conftest import SECRET, serving

server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_closes_the_page_and_deletes_uploads(monkeypatch, tmp_path, name):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "application", lambda collections, uploads: (uploads / "mine.png").touch())
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_, **__: signal.raise_signal(getattr(signal, name)))
    with server.listening(0) as bound:
        server.serve([], bound, False, lambda address: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP on this system")
def test_a_signal_within_a_request_ends_the_page(monkeypatch):
    """An event loop drops errors of its callbacks, and a signal may arrive in one."""

    async def answering(self):
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGHUP)
        for _ in range(5):
            await asyncio.sleep(0)
        assert self.should_exit

    monkeypatch.setattr(server, "application", lambda collections, uploads: None)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: asyncio.run(answering(self)))
    with server.listening(0) as bound:
        server.serve([], bound, False, lambda address: None)


def test_an_upload_has_a_limit(served):
    for length in (str((256 << 20) + 1), "1" * 30, "x"):
        for path in ("/upload", "/names", "/copies", "/copies/choice"):
            assert ask(served, path, "POST", Content_Length=length)[0] in (400, 413), length
    assert ask(served, "/upload", "POST", Transfer_Encoding="chunked", Content_Length="")[0] in (400, 411)


def table_of(answer, name):
    """The rows of a table that is downloaded under a name."""
    assert answer[1]["Content-Disposition"] == f'attachment; filename="{name}"'
    return list(csv.DictReader(io.StringIO(content_of(answer))))


def test_names_of_clusters_are_a_table_of_classes(served):
    """Of the clusters of the run itself; a cluster without a name has no row, and neither has an image that is gone."""
    form = {"run": 0, "clusters": 3, "cluster0": ' a, "b"\n ü', "cluster2": "=c", "cluster9": "none"}
    rows = table_of(post(served, "/names", form), "classes.csv")
    run = load_run(served.place / "one", "cpu")
    embedded = run.indexed_images()
    gone = {path for path in embedded.paths if path == "0/link.png" or not (served.photos / path).exists()}
    assert len(gone) == 2
    wanted = {}
    for cluster in run.group(embedded, 3).clusters:
        name = {0: 'a, "b" ü', 1: "", 2: "'=c"}[cluster.number]
        wanted |= {embedded.paths[n]: name for n in cluster.members if name and embedded.paths[n] not in gone}
    assert [*rows[0]] == ["path", "class"]
    assert {row["path"]: row["class"] for row in rows} == wanted
    assert 0 < len(rows) == len(wanted) < 202
    unnamed = post(served, "/names", {"run": 0, "clusters": 3, "cluster0": " "})
    assert "no cluster has a name" in content_of(unnamed, 400)
    assert post(served, "/names", form, Origin="http://evil.example")[0] == 403
    assert post(served, "/names", {"cluster0": "a" * (1 << 20)})[0] == 413


def test_several_photographs_are_answered_together(served, tmp_path):
    files = [(name, (served.photos / name).read_bytes()) for name in ("0/0010.png", "2/0002.png")]
    status, headers, _ = upload_all(served, [("<b>notes.txt", b"no image"), *files], [("k", 3), ("folder", "2")])
    assert status == 303
    assert "k=3&folder=2&" in headers["Location"]
    content = content_of(ask(served, headers["Location"]))
    assert "&lt;b&gt;notes.txt: not a readable image" in content
    assert "Photograph 2 of 2" in content
    run = load_run(served.place / "one", "cpu")
    paths = run.indexed_images().paths
    for section, (name, _) in zip(content.split("<article>")[1:], files, strict=True):
        assert f'title="{name.rpartition("/")[2]}"' in section
        shown = re.findall(r'href="/\?run=0&amp;image=(\d+)', section.split("</article>")[0])
        wanted = run.query(shutil.copy(served.photos / name, tmp_path / "mine.png"), 200)[0].paths
        assert [paths[int(number)] for number in shown] == [path for path in wanted if path.startswith("2/")][:3]
    assert upload_all(served, [("a.txt", b"a"), ("b.txt", b"b")])[0] == 400
    many = upload_all(served, [(f"{number}.png", PNG) for number in range(21)])
    assert "Maximum number of files is 20." in content_of(many, 400)
    assert upload_all(served, [])[0] == 400


@pytest.mark.parametrize(("name", "value"), [("radius", "3"), ("folder", "x"), ("keep", "all")])
def test_wrong_options_of_copies_are_refused(served, name, value):
    assert f"{name}={value}" in content_of(post(served, "/copies", {name: value}), 400)


def test_copies_are_found_and_choices_saved(served):
    assert "Nothing is moved or deleted" in content_of(ask(served, "/copies"))
    assert post(served, "/copies/choice", {"shown": "a"})[0] == 400
    status, headers, _ = post(served, "/copies", {"folder": "2", "radius": "0.01", "keep": "oldest"})
    assert (status, headers["Location"]) == (303, "/copies?folder=2")
    while (state := json.loads(content_of(ask(served, "/copies/state"))))["phase"] == "running":
        time.sleep(0.05)
    assert state["phase"] == "done"
    page = content_of(ask(served, "/copies?folder=2"))
    assert "1 group with 1 of " in page  # of two files of the same bytes
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;.png" in page
    boxes = re.findall(r'<input type="checkbox" name="keep" value="(\w+\.\d)"( checked)?>(\d) keep', page)
    assert [(number, checked) for _, checked, number in boxes] == [("1", " checked"), ("2", "")]
    form = [("shown", boxes[0][0].split(".")[0]), ("keep", boxes[1][0])]
    rows = table_of(post(served, "/copies/choice", [*form, ("format", "csv")]), "copies.csv")
    assert [(row["kind"], row["keep"]) for row in rows] == [("exact", "yes"), ("exact", "no")]
    (group,) = json.loads(content_of(post(served, "/copies/choice", [*form, ("format", "json")])))["groups"]
    assert group["keep"] == rows[0]["path"]
    for path in ("/copies", "/copies/choice"):
        assert post(served, path, form, Origin="http://evil.example")[0] == 403


def test_queries_are_answered_while_copies_are_looked_for(few, monkeypatch):
    """Also the state is, and the end of the server ends the search."""
    load_run(few.run, "cpu").index(few.photos)
    begun = threading.Event()
    go_on = threading.Event()

    def find(folder, names, radius, keep, listener):
        begun.set()
        assert go_on.wait(60)
        for number in range(1000):
            listener(number + 1)
        raise AssertionError("not stopped")

    monkeypatch.setattr("pml_ext_copies.service.find", find)
    with serving(open_collections([few.run], None, "cpu")) as here:
        assert post(here, "/copies", {})[0] == 303
        assert begun.wait(60)
        assert ask(here, "/?image=0")[0] == 200
        assert json.loads(content_of(ask(here, "/copies/state"))) == {"phase": "running", "read": 0, "images": 20}
        assert '<progress max="20" value="0">' in content_of(ask(here, "/copies"))
    go_on.set()
    for search in [each for each in threading.enumerate() if each.name == "copies"]:
        search.join(60)
        assert not search.is_alive()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9"},  # another program of this machine
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(served, headers):
    for path in ("/", "/clusters?clusters=5", "/thumbnail/0/0/160"):
        status, answered, _ = ask(served, path, **headers)
        assert status == 403
        assert not [name for name in answered if name.lower().startswith("access-control")]
    assert upload(served, PNG, **headers)[0] == 403


def test_requests_of_the_page_are_answered(served):
    own = {"Origin": f"http://127.0.0.1:{served.port}", "Sec_Fetch_Site": "same-origin"}
    assert upload(served, PNG, **own)[0] == 303
    status, headers, _ = ask(served, "/", Sec_Fetch_Site="none")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "script-src 'self';" in headers["Content-Security-Policy"]
    assert ask(served, "/", Host="evil.example")[0] == 400  # a name that leads here
    for path in ("/openapi.json", "/docs", "/static/../page.html"):
        assert ask(served, path)[0] == 404


def test_no_file_is_served_by_path(served):
    """Neither outside of the folder nor inside: pictures are asked for by number."""
    inside = [served.photos / "0" / "link.png", served.photos / "0" / "0000.png"]
    files = [served.secret, *inside, served.place / "one" / "network.json", Path("/etc/passwd"), Path(__file__)]
    contents = [file.read_bytes()[:60] for file in files]
    up = "/".join([".."] * 12)
    routes = ("/", "/static/", "/file=", "/thumbnail/0/", "/?upload=", "/?image=", "/?run=")
    for file in files:
        for name in (
            str(file),
            f"/{file}",
            f"{up}{file}",
            f"%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e{file}",
            f"file://{file}",
            os.path.relpath(file, served.place),
            f"..%2f..%2f..%2f..%2f..%2f..%2f{file}",
            f"{served.photos}/../{file.name}",
        ):
            for route in routes:
                status, _, content = ask(served, (route + name).replace(" ", "%20"))
                assert status in (400, 404), (route, name, status)
                assert not any(start in content for start in contents), (route, name)


def test_pictures_have_numbers_and_nothing_else(served):
    for path in ("2/0/160", "-1/0/160", "0/202/160", "0/-1/160", "0/0/100000", "0/x/160", "0/0", f"0/{'9' * 4300}/160"):
        assert ask(served, f"/thumbnail/{path}")[0] == 404, path
    shown = [np.asarray(Image.open(io.BytesIO(ask(served, f"/thumbnail/0/{n}/160")[2]))) for n in range(202)]
    assert not any((np.abs(image.astype(int) - SECRET).max(axis=2) < 30).any() for image in shown)
    gray = [image[80, 10].astype(int) for image in shown if image[80, 80, 0] < 150]
    assert sum((np.abs(color - 225) < 4).all() for color in gray) == 2  # one leads outside, one is gone


def test_a_folder_instead_of_a_run_is_indexed(few, monkeypatch):
    """A photograph that was added is on the page and in the index, by which a class is known or new."""
    load_run(few.run, "cpu").index(few.photos)
    shutil.copy(next((few.photos / "0").iterdir()), few.photos / "2" / "added.png")
    shown = []
    of_folder = SimpleNamespace(run_of=lambda *_: (few.run, few.photos), load_run=service("search", "a test").load_run)
    monkeypatch.setattr(commands, "service", lambda name, what: of_folder)
    monkeypatch.setattr(server, "serve", lambda collections, *_: shown.extend(collections))
    commands.browse(few.photos, port=0, opened=False, device="cpu")
    (page,) = shown
    assert "2/added.png" in page.paths
    assert list(page.run.indexed_images().paths) == list(page.paths)


def test_a_taken_port_is_told_in_a_line(served, pml_ext_command):
    done = pml_ext_command("browse", str(served.place / "one"), "--port", str(served.port), "--no-open")
    assert done.returncode == 2
    assert re.fullmatch(
        rf"pml-ext: --port {served.port} is not available \(.*\); type another one, or --port 0 for any\n", done.stderr
    )


def test_one_query_is_computed_at_a_time(tmp_path, monkeypatch):
    busy = threading.Lock()

    def draw(tab, options):
        assert busy.acquire(blocking=False), "two at a time"
        time.sleep(0.05)
        busy.release()
        return "", 200

    monkeypatch.setattr(server, "Page", lambda *_: SimpleNamespace(draw=draw))
    view = next(route.endpoint for route in server.application([], tmp_path).routes if route.path == "/")
    request = SimpleNamespace(url=SimpleNamespace(path="/"), query_params=server.QueryParams())

    async def all_at_once():
        return await asyncio.gather(*(view(request) for _ in range(4)))

    assert [answer.status_code for answer in asyncio.run(all_at_once())] == [200] * 4

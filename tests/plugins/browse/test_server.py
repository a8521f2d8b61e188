"""The server of the page: what it refuses, and what it gives away."""

import asyncio
import csv
import io
import os
import re
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run

from .asking import PNG, ask, upload
from .conftest import SECRET

server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_closes_the_page_and_deletes_uploads(monkeypatch, tmp_path, name):
    number = getattr(signal, name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "application", lambda collections, uploads: (uploads / "mine.png").touch())
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: signal.raise_signal(number))
    with server.listening(0) as bound:
        server.serve([], bound, False, lambda address: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP on this system")
def test_a_signal_within_a_request_ends_the_page(monkeypatch):
    """An event loop drops errors of its callbacks, in one of which a signal may arrive."""

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
    for length in (str((64 << 20) + 1), "1" * 30, "x"):
        assert ask(served, "/upload", "POST", Content_Length=length)[0] in (400, 413), length
    assert ask(served, "/upload", "POST", Transfer_Encoding="chunked", Content_Length="")[0] in (400, 411)


def test_names_of_clusters_are_a_table_of_classes(served):
    """Of the clusters of the run itself; a cluster without a name has no row, and neither has an image that is gone."""
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    body = urlencode({"run": 0, "clusters": 3, "cluster0": ' a, "b"\n ü', "cluster2": "=c", "cluster9": "none"})
    status, headers, content = ask(served, "/names", "POST", body.encode(), **form)
    assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="classes.csv"')
    assert content.startswith(b"path,class\n")
    run = load_run(served.place / "one", "cpu")
    embedded = run.indexed_images()
    wanted = {}
    for cluster in run.group(embedded, 3).clusters:
        if cluster.number != 1:
            wanted |= dict.fromkeys(
                [embedded.paths[n] for n in cluster.members], {0: 'a, "b" ü', 2: "=c"}[cluster.number]
            )
    gone = {path for path in embedded.paths if path == "0/link.png" or not (served.photos / path).exists()}
    assert len(gone) == 2
    wanted = {path: name for path, name in wanted.items() if path not in gone}
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert {row["path"]: row["class"] for row in rows} == wanted
    assert 0 < len(rows) == len(wanted) < 202
    every = urlencode({"run": 0, "clusters": 3, "cluster0": "a", "cluster1": "a", "cluster2": "a"})
    content = ask(served, "/names", "POST", every.encode(), **form)[2].decode()
    assert {row["path"] for row in csv.DictReader(io.StringIO(content))} == set(embedded.paths) - gone
    page = ask(served, "/clusters?clusters=3")[2].decode()
    assert page.count('form="names" name="cluster') == 3
    status, _, content = ask(served, "/names", "POST", b"run=0&clusters=3&cluster0=+", **form)
    assert (status, b"no cluster has a name" in content) == (400, True)
    assert ask(served, "/names", "POST", body.encode(), Origin="http://evil.example", **form)[0] == 403
    assert ask(served, "/names", "POST", b"a" * ((1 << 20) + 1), **form)[0] == 413


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


def test_own_requests_are_answered(served):
    own = {"Origin": f"http://127.0.0.1:{served.port}", "Sec_Fetch_Site": "same-origin"}
    assert upload(served, PNG, **own)[0] == 303
    status, headers, _ = ask(served, "/", Sec_Fetch_Site="none")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "script-src 'self';" in headers["Content-Security-Policy"]
    assert ask(served, "/", Host="evil.example")[0] == 400  # a name that leads here
    for path in ("/openapi.json", "/docs", "/static/../page.html"):
        assert ask(served, path)[0] == 404


def test_no_file_is_served(served):
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
    app = server.application([], tmp_path)
    view = next(route.endpoint for route in app.routes if route.path == "/")
    request = SimpleNamespace(url=SimpleNamespace(path="/"), query_params={})

    async def all_at_once():
        return await asyncio.gather(*(view(request) for _ in range(4)))

    assert [answer.status_code for answer in asyncio.run(all_at_once())] == [200] * 4

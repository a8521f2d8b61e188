"""The page over HTTP, served by the command: what it shows, what it refuses, what it gives away."""

import asyncio
import base64
import html
import http.client
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import DataError

from ..conftest import full
from .conftest import SECRET

server = pytest.importorskip("pml_ext_search.browse.server", reason="needs the extra browse", exc_type=ImportError)
PNG = io.BytesIO()
Image.new("L", (8, 8), 90).save(PNG, "PNG")
PNG = PNG.getvalue()


@pytest.fixture(scope="module")
def served(trained, photos, tmp_path_factory):
    """The command with two runs, on 202 images: odd names, one outside the folder, one that is gone; Ctrl-C ends it."""
    place = tmp_path_factory.mktemp("served")
    images, secret, outside = place / "photos", place / "secret.png", []
    shutil.copytree(photos, images)
    Image.new("RGB", (8, 8), SECRET).save(secret)
    (images / "0" / "link.png").symlink_to(secret)
    shutil.copy(next((images / "2").iterdir()), images / "2" / "<img src=x onerror=alert(1)>.png")
    for name, run in (("one", "one"), ("two", "other")):
        shutil.copytree(trained / run, place / name, ignore=shutil.ignore_patterns("collection", "browse"))
        load_run(place / name, "cpu").index(images)
    sorted((images / "3").iterdir())[0].unlink()

    def accept():  # a proxy that counts who wants to go out
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            outside.append(connection.recv(200))
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy")
        proxies = dict.fromkeys(names, f"http://127.0.0.1:{listener.getsockname()[1]}")
        environment = {**os.environ, **proxies, "PYTHONUNBUFFERED": "1", "NO_PROXY": "", "no_proxy": ""}
        command = [sys.executable, "-m", "pml_ext", "browse", "one", "--beside", "two", "--port", "0", "--no-open"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=place, env=environment, **pipes)
        line = process.stdout.readline()
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)   \(Ctrl-C ends\)\n", line)
        assert match, line + process.communicate(timeout=30)[1]
        yield SimpleNamespace(port=int(match[1]), place=place, photos=images, secret=secret)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert outside == []
    assert (process.returncode, told.splitlines()[-1]) == (0, "pml-ext: the page is closed")
    assert "Traceback" not in told


def ask(served, path, method="GET", body=b"", **headers):
    """Status, headers and content; the path goes out as it is, with all its dots."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def upload(served, content, name="mine.png", **headers):
    lines = ["--b", f'Content-Disposition: form-data; name="photo"; filename="{name}"', "", ""]
    body = "\r\n".join(lines).encode() + content + b"\r\n--b--\r\n"
    return ask(served, "/upload", "POST", body, Content_Type="multipart/form-data; boundary=b", **headers)


def read(served, path):
    """The text of a page, without tags."""
    status, _, content = ask(served, path)
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", content.decode(), flags=re.DOTALL)
    return status, " ".join(html.unescape(text).split())


def test_a_query_by_click(served):
    status, text = read(served, "/?run=0&image=5&k=4")
    assert status == 200
    assert "202 images of photos, 10 classes" in text
    assert "2 of 202 images are missing; placeholders are shown" in text  # one is gone, one leads outside
    assert text.count("of 4 of the same class") == 2
    assert "Nearest by one" in text
    assert "Nearest by two" in text
    content = ask(served, "/?run=0&image=5&k=4")[2].decode()
    pictures = re.findall(r"<img [^>]*>", content)
    assert len(pictures) == 1 + 2 * 4 + 48
    assert all(re.search(r'alt="[^"]+\.png"', each) for each in pictures)
    status, text = read(served, "/?image=202")
    assert (status, "image=202: wanted a number from 0 to 201" in text) == (400, True)
    page = ask(served, "/?k=4")[2].decode()  # an example
    assert (page.count("<h1>"), page.count("Nearest by")) == (1, 2)
    assert len(re.findall("<img ", page)) == 1 + 2 * 4 + 47
    assert 'id="busy" role="status" hidden' in page
    assert re.search(r"<b>[^<]+</b>/<wbr>[^<]+\.png", page)  # folder and name


def test_unseen_classes_only(served):
    """The run knows no class of the renamed ones; the other run has another half of the classes."""
    path = "price $5_$6/"
    for tab in ("/?unseen=1&k=1", "/map?unseen=1&method=pca"):
        content = html.unescape(ask(served, tab)[2].decode())
        assert 'name="unseen" value="1" checked' in content
        listed = re.findall(r'"([^"]+/\d{4}\.png)"\]', content) or re.findall(r'alt="([^"]+)"', content)[3:]
        assert len(listed) > 5
        assert all(name.startswith(path) for name in listed)
    _, text = read(served, "/answers?kind=right&unseen=1")
    assert re.search(r"1 to (\d+) of \1 ", text)
    assert text.count("(an unseen class)") == int(re.search(r"1 to (\d+) of", text)[1])
    _, text = read(served, "/clusters?clusters=10&unseen=1")
    assert re.search(r" [1-3] clusters? of one by k-means, mostly of unseen classes", text)


def test_a_query_by_upload(served):
    status, headers, _ = upload(served, (served.photos / "0" / "0010.png").read_bytes(), "<b>mine.png")
    assert status == 303
    status, text = read(served, headers["Location"] + "&k=3")
    assert status == 200
    assert text.count(".png") == 1 + 2 * 3 + 48
    content = ask(served, headers["Location"])[2]
    assert b"&lt;b&gt;mine.png" in content
    picture = base64.b64decode(re.search(rb'src="data:image/jpeg;base64,([^"]+)"', content)[1])
    assert Image.open(io.BytesIO(picture)).size == (480, 480)
    for _ in range(8):
        upload(served, PNG)
    status, text = read(served, headers["Location"])  # the eight latest are kept
    assert (status, "no longer kept" in text) == (400, True)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        *((content, "mine.png: not a readable image") for content in (b"no image", b"")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "mine.png: not a readable image"),
        (b"P4\n7200 7100\n", "more than 50 megapixels"),
        (b"P4\n50000 50000\n", "more than 50 megapixels"),  # of which Pillow warns
    ],
)
def test_an_upload_that_is_no_image_or_too_large_is_refused_before_it_is_decoded(served, content, text):
    status, _, page = upload(served, content)
    assert (status, text in page.decode()) == (400, True)


def test_a_refused_upload_leaves_no_file(pair, tmp_path, monkeypatch):
    page, noise = server.Page(pair, tmp_path), io.BytesIO()
    Image.effect_noise((64, 64), 90).save(noise, "PNG")
    with pytest.raises(DataError, match="cut.png: not a readable image"):
        page.keep(io.BytesIO(noise.getvalue()[:3000]), "cut.png")
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setattr("pml_ext_search.browse.page.thumbnail", full)
    with pytest.raises(OSError, match="No space left"):
        page.keep(io.BytesIO(PNG), "mine.png")
    assert [*tmp_path.iterdir()] == []


def test_an_upload_has_a_limit(served):
    for length in (str((64 << 20) + 1), "1" * 30, "x"):
        assert ask(served, "/upload", "POST", Content_Length=length)[0] in (400, 413), length
    assert ask(served, "/upload", "POST", Transfer_Encoding="chunked", Content_Length="")[0] in (400, 411)


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


def test_clusters(served):
    status, text = read(served, "/clusters?clusters=3&open=0")
    assert (status, "3 clusters of one by k-means" in text) == (200, True)
    assert re.search(r"cluster 0: \d+ images, \d+% ", text)
    status, text = read(served, "/clusters?run=1&clusters=400")
    assert (status, "400: wanted 400 images or more" in text) == (400, True)


def test_right_and_wrong(served):
    status, text = read(served, "/answers")
    assert status == 200
    assert re.search(r"one , classes of training: Recall@1 \d+\.\d%, .* of \d+ of 18\d images", text)
    assert re.search(r"two , unseen classes: Recall@1 \d+\.\d%, .* of \d+ of \d\d images", text)
    assert re.search(r"Most frequent confusions?: \S.* retrieved for .* queries \(\d+\)", text)
    for kind in ("right", "disputed"):
        assert "An image and its nearest other one: " in read(served, f"/answers?kind={kind}&run=1")[1]
    assert "An image and its nearest other one: 61 to 120 of " in read(served, "/answers?kind=right&start=61")[1]


@pytest.mark.parametrize("path", ["/map", "/map?color=cluster&method=pca&clusters=4"])
def test_a_map(served, path):
    content = ask(served, path)[2].decode()
    assert "<img src=x" not in content
    assert len(re.findall(r'\.png"\]', content)) == 202
    assert 'role="img" aria-label="Map of the embeddings of one: 202 images' in content


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

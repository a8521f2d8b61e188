"""The page, served by the command: what it gives away over HTTP, what a browser shows. One process for all tests."""

import http.client
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run

pytest.importorskip("gradio", reason="the page needs Gradio, of the extra [browse]")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
ROUTES = (
    "/gradio_api/file=",
    "/file=",
    "/gradio_api/file/",
    "/file/",
    "/static/",
    "/assets/",
    "/svelte/",
    "/thumbnail/0/",
    "/custom_component/",
    "/gradio_api/stream/",
    "/theme.css/",
    "/",
)
SECRET = (1, 254, 3)  # the color of an image that must not be shown


@pytest.fixture(scope="module")
def sink():
    """A proxy that counts who wants to go out."""
    asked, listener = [], socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            asked.append(connection.recv(200))
            connection.close()

    threading.Thread(target=accept, daemon=True).start()
    yield SimpleNamespace(address=f"http://127.0.0.1:{listener.getsockname()[1]}", asked=asked)
    listener.close()


@pytest.fixture(scope="module")
def served(runs, few, sink, tmp_path_factory):
    """The command with two runs, on a folder of 22 images: odd names, one that leads outside, one that is gone."""
    place = tmp_path_factory.mktemp("served")
    photos, secret = place / "photos", place / "secret.png"
    shutil.copytree(few[0], photos)
    (photos / "1").rename(photos / "price $5_$6")
    Image.new("RGB", (8, 8), SECRET).save(secret)
    (photos / "0" / "link.png").symlink_to(secret)
    shutil.copy(next((photos / "2").iterdir()), photos / "2" / "<img src=x onerror=alert(1)>.png")
    for number, run in enumerate(runs):
        shutil.copytree(run, place / f"run{number}", ignore=shutil.ignore_patterns("records", "figures", "index"))
    load_run(place / "run0", "cpu").index(photos)
    gone = sorted((photos / "3").iterdir())[0]
    gone.unlink()
    command = [
        sys.executable,
        "-m",
        "pml_ext",
        "browse",
        "run0",
        "photos",
        "--beside",
        "run1",
        "--port",
        "0",
        "--no-open",
    ]
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), sink.address)
    environment = {**os.environ, **proxies, "PYTHONUNBUFFERED": "1", "NO_PROXY": "", "no_proxy": ""}
    process = subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)   \(Ctrl-C ends\)\n", line)
    assert match, line + process.communicate(timeout=30)[1]
    yield SimpleNamespace(port=int(match[1]), place=place, photos=photos, secret=secret, process=process, gone=gone)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def ask(served, path, method="GET", body=None, **headers):
    """Status, headers and content; the path goes out as it is, with all its dots."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    data = json.dumps(body).encode() if body is not None else b""
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(data)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_no_file_is_served(served):
    """Neither outside of the folder nor inside: pictures are asked for by number."""
    files = [
        served.secret,
        served.photos / "0" / "link.png",
        served.photos / "0" / "0000.png",
        served.place / "run0" / "network.json",
        served.place / "run0" / "metrics.json",
        Path("/etc/passwd"),
        Path(__file__),
    ]
    contents = [file.read_bytes()[:60] for file in files]
    up = "/".join([".."] * 12)
    for file in files:
        for name in (
            str(file),
            f"/{file}",
            f"{up}{file}",
            f"%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e{file}",
            f"file://{file}",
            os.path.relpath(file, served.place),
            f"..%2f..%2f..%2f..%2f..%2f..%2f{file}",
            f"photos/../{file.name}",
            f"{served.photos}/../{file.name}",
        ):
            for route in ROUTES:
                status, _, content = ask(served, (route + name).replace(" ", "%20"))
                assert not any(start in content for start in contents), (route, name)
                assert status != 200 or b"<html" in content[:300].lower(), (route, name, status)


def test_pictures_have_numbers_and_nothing_else(served):
    status, headers, content = ask(served, "/thumbnail/1/3/160")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(content)).size == (160, 160)
    for path in (
        "/thumbnail/2/0/160",
        "/thumbnail/-1/0/160",
        "/thumbnail/0/22/160",
        "/thumbnail/0/-1/160",
        "/thumbnail/0/0/100000",
        "/thumbnail/0/x/160",
        "/thumbnail/0/0",
    ):
        assert ask(served, path)[0] in (404, 422), path
    shown = [np.asarray(Image.open(io.BytesIO(ask(served, f"/thumbnail/0/{n}/160")[2]))) for n in range(22)]
    assert not any((np.abs(image.astype(int) - SECRET).max(axis=2) < 30).any() for image in shown)
    crosses = [
        image for image in shown if (np.abs(image[80, 10].astype(int) - 225) < 4).all() and image[80, 80, 0] < 150
    ]
    assert len(crosses) == 2  # the one that leads outside, and the one that is gone


def test_a_path_that_somebody_sends_is_not_read(served, sink):
    """What a browser would send after an upload, with another file in its place, for the photograph and for others."""
    config = json.loads(ask(served, "/config")[2])
    events = [each for each in config["dependencies"] if each["inputs"]]
    assert [each for each in events if any(target[1] == "upload" for target in each["targets"])]
    paths = [
        str(served.secret),
        str(served.photos / "0" / "0000.png"),
        "/etc/passwd",
        "https://example.org/a.png",
        [str(served.secret)],
        f"{served.photos}\0",
    ]
    for event in events:
        for path in paths:
            file = {"path": path, "meta": {"_type": "gradio.FileData"}}
            body = {"data": [file] * len(event["inputs"]), "fn_index": event["id"], "session_hash": "s"}
            for route in ("queue/join", "run/predict", "api/predict"):
                assert ask(served, f"/gradio_api/{route}", "POST", body)[0] == 403, (path, route)
    assert ask(served, "/gradio_api/queue/join", "POST", {"data": "x" * (1 << 20)})[0] == 403
    assert sink.asked == []


def test_nothing_is_fetched_from_elsewhere(served, sink):
    for path in (
        "proxy=https://example.org/",
        "file=https://example.org/a.png",
        "FILE=http://example.org/a.png",
        "file/https://example.org/a.png",
    ):
        assert ask(served, f"/gradio_api/{path}")[0] in (403, 404), path
    assert sink.asked == []
    page = ask(served, "/")
    assert page[0] == 200
    assert "connect-src 'self'" in page[1]["Content-Security-Policy"]
    assert b"fonts.googleapis" not in page[2]
    assert ask(served, "/", Host="evil.example")[0] == 400  # a name that leads here
    assert str(served.place).encode() not in page[2]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
@pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="no Playwright")
def test_a_browser(served, sink, tmp_path):
    """Query by click and by upload, two runs side by side, clusters, map, right and wrong."""
    from playwright.sync_api import sync_playwright

    address, strange, errors = f"http://127.0.0.1:{served.port}", [], []
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(20_000)
        page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else strange.append(r.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(address)
        # 2 of 22: one is gone, one leads outside.
        page.get_by_text("2 of 22 images cannot be shown").wait_for()
        page.locator(".pml-grid figure[role=button]", has_text="price $5_$6").first.click()
        page.get_by_text("Nearest by run1").wait_for()
        assert page.locator("figure.query").inner_text().split("\n")[0] == "price $5_$6"
        assert page.locator("section", has_text="Nearest by run0").locator("figure").count() == 12
        odd = page.locator(".pml-grid figure", has_text="<img src=x onerror=alert(1)>.png")
        assert odd.count() >= 1

        page.locator("#photo input[type=file]").set_input_files(served.photos / "0" / "0010.png")
        page.locator("figure.query", has_text="0010.png").wait_for()
        assert page.locator("section", has_text="Nearest by run1").locator("figure").count() == 12
        for content in (b"no image", b""):
            page.get_by_label("Remove Image").click()
            (tmp_path / "broken.png").write_bytes(content)
            page.locator("#photo input[type=file]").set_input_files(tmp_path / "broken.png")
            page.get_by_text("broken.png: not a readable image").wait_for()
            page.get_by_text("broken.png: not a readable image").click()
            page.get_by_label("Close").click()

        page.get_by_role("tab", name="Clusters").click()
        page.get_by_label("How many clusters (or auto)").first.fill("3")
        page.get_by_role("button", name="Find clusters").click()
        page.get_by_text("3 clusters of run0 by k-means").wait_for()
        page.locator(".clusters figure").first.click()
        page.locator("h3", has_text=re.compile(r"^cluster 0: \d+ images, ")).wait_for()
        page.get_by_label("How many clusters (or auto)").first.fill("40")
        page.get_by_role("button", name="Find clusters").click()
        page.get_by_text("40: wanted from 1 to the 22 images").wait_for()

        page.get_by_role("tab", name="Map").click()
        page.get_by_text("All images; t-SNE").wait_for()
        page.locator(".pml-map .legend span", has_text="price $5_$6").wait_for()
        edges = page.locator(".pml-map canvas").bounding_box()
        hover = page.locator(".pml-map .hover img")
        for place in range(0, 620, 12):  # along the places of all points, from left to right
            for down in range(0, 620, 31):
                if not hover.is_visible():
                    left = edges["x"] + (edges["width"] - 620) / 2
                    page.mouse.move(left + place, edges["y"] + down)
        assert hover.is_visible()
        assert page.locator(".pml-map .hover div").inner_text().split("\n")[-1].endswith(".png")

        page.get_by_role("tab", name="Right and wrong").click()
        page.get_by_text("Recall@1").first.wait_for()
        page.locator("h3", has_text="An image and its nearest other one").wait_for()
        page.locator(".pairs figure").first.click()
        page.get_by_role("tab", name="Query", selected=True).wait_for()
        browser.close()
    assert strange == []
    assert errors == []
    assert sink.asked == []


def test_a_taken_port_is_said_in_a_line(served, command):
    done = command("browse", served.place / "run0", "--port", served.port, "--no-open")
    assert done.returncode == 2
    assert re.fullmatch(
        rf"pml-ext: --port {served.port} cannot be had \(.*\); type another one, or --port 0\n", done.stderr
    )
    assert "wanted from 0" in command("browse", served.place / "run0", "--port", 99999).stderr


def test_without_gradio_the_extra_is_named(served, command, monkeypatch):
    monkeypatch.setattr("pml_ext.lazy.importlib.util.find_spec", lambda name: None)
    done = command("browse", served.place / "run0", "--no-open")
    assert done.returncode == 2
    assert done.stderr == (
        "pml-ext: pml-ext browse needs the package 'gradio', which is not installed. "
        'Type: pip install "pml-ext[browse]"\n'
    )


def test_ctrl_c_ends_it_with_a_line(served):
    """The last of these tests."""
    served.process.send_signal(signal.SIGINT)
    _, told = served.process.communicate(timeout=20)
    assert served.process.returncode == 0, told
    assert told.splitlines()[-1] == "pml-ext: the page is closed"
    assert "Traceback" not in told
    assert len(told.splitlines()) == 2, told  # that, and that the other run was indexed

"""Two trained runs, a folder of photographs, and the page that the command serves of them."""

import contextlib
import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext_browse import open_collections

from ..search.conftest import write_digits

SECRET = (1, 254, 3)  # the color of an image outside the folder


@pytest.fixture(scope="session")
def trained(runs, tmp_path_factory):
    """Two runs, trained on the digits 0 to 9, with collections of their own."""
    place = tmp_path_factory.mktemp("browse") / "runs"
    return shutil.copytree(runs[0].parent, place, ignore=shutil.ignore_patterns("collection", "query.png"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """200 digits, a sub-folder for each class; the ones are renamed, so that training knows no class of that name."""
    place = write_digits(tmp_path_factory.mktemp("photos"), range(200))
    return (place / "1").rename(place / "price $5_$6").parent


@pytest.fixture(scope="session")
def pair(trained, photos):
    """The collections of both runs."""
    return open_collections([trained / "one", trained / "other"], photos, "cpu", lambda _: None)


@pytest.fixture
def few(tmp_path, trained, photos):
    """A run, 20 photographs of two classes, and an image outside their folder."""
    shutil.copytree(trained / "one", tmp_path / "run", ignore=shutil.ignore_patterns("records", "collection", "browse"))
    for name in ("0", "2"):
        (tmp_path / "few" / name).mkdir(parents=True)
        for file in sorted((photos / name).iterdir())[:10]:
            shutil.copy(file, tmp_path / "few" / name)
    Image.new("RGB", (8, 8), SECRET).save(tmp_path / "secret.png")
    return SimpleNamespace(
        run=tmp_path / "run", photos=tmp_path / "few", secret=tmp_path / "secret.png", place=Path(tmp_path)
    )


@contextlib.contextmanager
def serving(collections):
    """The port of the page, which a thread serves until the block ends."""
    server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)
    ready = threading.Event()
    servers = []
    with pytest.MonkeyPatch.context() as patch, server.listening(0) as bound:
        plain = server.uvicorn.Server
        patch.setattr(server.uvicorn, "Server", lambda settings: servers.append(plain(settings)) or servers[0])
        thread = threading.Thread(target=server.serve, args=(collections, bound, False, lambda _: ready.set()))
        thread.start()
        assert ready.wait(60)
        try:
            yield SimpleNamespace(port=bound.getsockname()[1])
        finally:
            servers[0].should_exit = True
            thread.join(60)


@pytest.fixture(scope="session")
def served(trained, photos, tmp_path_factory):
    """The command with two runs, on 202 images: odd names, one outside the folder, one that is gone; Ctrl-C ends it."""
    pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)
    place = tmp_path_factory.mktemp("served")
    images = place / "photos"
    secret = place / "secret.png"
    outside = []
    shutil.copytree(photos, images)
    Image.new("RGB", (8, 8), SECRET).save(secret)
    (images / "0" / "link.png").symlink_to(secret)
    shutil.copy(next((images / "2").iterdir()), images / "2" / "<img src=x onerror=alert(1)>.png")
    for name, run in (("one", "one"), ("two", "other")):
        shutil.copytree(trained / run, place / name, ignore=shutil.ignore_patterns("collection", "browse"))
        load_run(place / name, "cpu").index(images)
    sorted((images / "3").iterdir())[0].unlink()

    class Proxy(socketserver.StreamRequestHandler):
        """Remembers who wants to go out."""

        def handle(self):
            outside.append(self.rfile.readline())

    with socketserver.TCPServer(("127.0.0.1", 0), Proxy) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy")
        proxies = dict.fromkeys(names, f"http://127.0.0.1:{listener.server_address[1]}")
        environment = {**os.environ, **proxies, "PYTHONUNBUFFERED": "1", "NO_PROXY": "", "no_proxy": ""}
        command = [sys.executable, "-m", "pml_ext", "browse", "one", "--beside", "two", "--port", "0", "--no-open"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=place, env=environment, **pipes)
        line = process.stdout.readline()
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)   \(Ctrl-C ends\)\n", line)
        assert match, line + process.communicate(timeout=600)[1]
        yield SimpleNamespace(port=int(match[1]), place=place, photos=images, secret=secret)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=600)
        listener.shutdown()
    assert outside == []
    assert (process.returncode, told.splitlines()[-1]) == (0, "pml-ext: the page is closed")
    assert "Traceback" not in told

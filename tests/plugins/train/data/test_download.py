"""Archives from a local server: checksums, unpacking, bad archives, and the command."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_train.data import get_archives, image_sets, omniglot, omniglot_small
from pml_ext_train.data.published import Archive, Count

from .made_up import cub_folder, omniglot_zip

BODY = np.random.default_rng(0).integers(256, size=300_000, dtype=np.uint8).tobytes()


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()


@pytest.fixture
def server(tmp_path_factory):
    """Serves the folder ``files``; ``asked`` has the requested paths."""
    files = tmp_path_factory.mktemp("served")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=files))
    serving.files = files
    serving.asked = []
    serving.url = f"http://127.0.0.1:{serving.server_port}/"
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()
    thread.join()


def archive(server, name="set.bin", body=BODY, **settings) -> Archive:
    (server.files / name).write_bytes(body)
    return Archive(name, 1, hashlib.md5(body).hexdigest(), server.url + name, **settings)


def about(*archives: Archive):
    return dataclasses.replace(image_sets.SOP, archives=archives)


def test_a_download_is_checked_before_its_name(server, tmp_path):
    whole = archive(server, unpack=False)
    place = tmp_path / "new"
    (server.files / "set.bin").write_bytes(BODY[::-1])
    found = hashlib.md5(BODY[::-1]).hexdigest()
    with pytest.raises(DataError, match=f"its MD5 is {found}, not {whole.checksum}; delete it and download it again"):
        get_archives(about(whole), place)
    assert [path.name for path in place.iterdir()] == [".lock"]
    (server.files / "set.bin").write_bytes(BODY)
    (place / "set.bin.part").write_bytes(BODY[:1000])
    get_archives(about(whole), place)
    asked = len(server.asked)
    get_archives(about(whole), place)
    assert len(server.asked) == asked
    assert (place / "set.bin").read_bytes() == BODY
    assert {path.name for path in place.iterdir()} == {".lock", "set.bin"}
    gone = dataclasses.replace(whole, name="other.bin", url=server.url + "other")
    with pytest.raises(DataError, match=r"cannot be downloaded \(.*404.*or put other.bin into .* yourself"):
        get_archives(about(gone), tmp_path)


def tarred(entries: dict[str, bytes], links: dict[str, str] = {}) -> bytes:  # noqa: B006
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = target
            tar.addfile(info)
        for name, body in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, body in entries.items():
            archive.writestr(name, body)
    return buffer.getvalue()


@pytest.mark.parametrize(("pack", "name"), [(tarred, "set.tgz"), (zipped, "set.zip")])
def test_only_complete_archives_are_unpacked(tmp_path, pack, name):
    (tmp_path / "set" / "images").mkdir(parents=True)
    (tmp_path / "set" / "images" / "1.jpg").write_bytes(b"half")
    whole = pack({"set/images/1.jpg": b"one", "set/images/2.jpg": b"two", "set/list": BODY[:9000]})
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"{name}: not a readable archive .*delete it and download it again"):
        get_archives(about(Archive(name, 1)), tmp_path)
    assert [path.name for path in tmp_path.rglob("*.jpg")] == ["1.jpg"]
    (tmp_path / name).write_bytes(whole)
    get_archives(about(Archive(name, 1)), tmp_path)
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.jpg")}
    assert files == {"set/images/1.jpg": b"one", "set/images/2.jpg": b"two"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", name]


@pytest.mark.parametrize("filtered", [True, False], ids=["filter", "no filter"])  # Python 3.11.2 has no data_filter
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("set.tgz", lambda other: tarred({"../out.txt": b"x"})),
        ("set.tgz", lambda other: tarred({}, {"set/link": str(other)})),
        ("set.tgz", lambda other: tarred({}, {"link": "../../other"})),
        ("set.tgz", lambda other: tarred({"set/link/out.txt": b"x"}, {"set/link": "../../../other"})),
        ("set.zip", lambda other: zipped({"../out.txt": b"x"})),
        ("set.zip", lambda other: zipped({f"{other}/out.txt": b"x"})),
    ],
    ids=["tar above", "tar link to root", "tar link above", "tar through a link", "zip above", "zip at root"],
)
def test_archives_cannot_write_outside_their_folder(tmp_path, monkeypatch, name, pack, filtered):
    place = tmp_path / "place"
    other = tmp_path / "other"
    place.mkdir()
    other.mkdir()
    (other / "kept.txt").write_bytes(b"kept")
    (place / name).write_bytes(pack(other))
    if not filtered:
        monkeypatch.setattr(tarfile, "data_filter", getattr(tarfile, "fully_trusted_filter", None), raising=False)
    with contextlib.suppress(DataError):  # zips lose such files
        get_archives(about(Archive(name, 1)), place)
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert found == ["other", "other/kept.txt", "place", f"place/{name}"]


def test_omniglot_small_is_downloaded_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PML_EXT_DATA", raising=False)
    sets = {omniglot.TRAIN: {"Greek": 5}, omniglot.TEST: {"Greek": 2, "Sanskrit": 4}}
    about = dataclasses.replace(
        omniglot.SMALL,
        archives=tuple(
            archive(server, name, omniglot_zip(tmp_path / name, alphabets, drawings=1), unpack=False)
            for name, alphabets in sets.items()
        ),
        counts={"train": Count(5, 5), "test": Count(4, 4)},
    )
    monkeypatch.setattr(omniglot, "SMALL", about)
    splits = omniglot_small()
    asked = len(server.asked)
    assert (len(splits.train), len(omniglot_small().test), len(server.asked)) == (5, 4, asked)
    stored = tmp_path / "pml_ext" / "omniglot-small" / omniglot.TEST
    stored.write_bytes(stored.read_bytes()[:-9])
    with pytest.raises(DataError, match="wrong or incomplete file, because its MD5"):
        omniglot_small()


def test_the_command_says_what_is_missing(pml_ext_command, tmp_path):
    sets = json.loads(pml_ext_command("data", "--json").stdout)
    assert {each["name"] for each in sets} >= {"cub", "cars196", "sop", "inshop", "imagenet", "omniglot"}
    told = pml_ext_command("data", "sop", "--data", str(tmp_path), COLUMNS="200")
    assert told.returncode == 1
    wanted = ["Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e", "by hand", "59,551", str(tmp_path)]
    assert [text for text in [*wanted, "has no Ebay_train.txt"] if text not in told.stdout] == []
    by_hand = pml_ext_command("data", "sop", "--data", str(tmp_path), "--download")
    assert (by_hand.returncode, by_hand.stderr.count("\n")) == (2, 1)
    assert "cannot be downloaded by a program; get it from" in by_hand.stderr
    assert "nearest: sop" in pml_ext_command("data", "spo").stderr
    (tmp_path / "Stanford_Online_Products.zip").write_bytes(b"half")
    found = json.loads(pml_ext_command("data", "sop", "--data", str(tmp_path), "--json").stdout)
    assert "Stanford_Online_Products.zip: wrong or incomplete file" in found["problem"]
    assert found["archives"][0]["megabytes"] == image_sets.SOP.archives[0].megabytes


def test_the_command_downloads_and_unpacks(pml_ext_command, server, tmp_path, monkeypatch):
    whole = cub_folder(tmp_path / "whole" / "CUB_200_2011", each=1)
    files = [file for file in whole.rglob("*") if file.is_file()]
    entries = {file.relative_to(whole.parent).as_posix(): file.read_bytes() for file in files}
    counts = {"train": Count(2, 2), "test": Count(2, 2)}
    packed = archive(server, "CUB_200_2011.tgz", tarred(entries))
    monkeypatch.setattr(image_sets, "CUB", dataclasses.replace(image_sets.CUB, archives=(packed,), counts=counts))
    missing = pml_ext_command("data", "cub", "--data", str(tmp_path / "birds"))
    assert missing.returncode == 1
    assert "pml-ext data cub --download fetches it" in missing.stdout
    done = pml_ext_command("data", "cub", "--data", str(tmp_path / "birds"), "--download")
    assert (done.returncode, "complete" in done.stdout) == (0, True)
    assert len(image_sets.cub(tmp_path / "birds").train) == 2
    asked = len(server.asked)
    (tmp_path / "birds" / "CUB_200_2011" / "images" / "002.Bird_2" / "Bird_0.jpg").unlink()
    again = pml_ext_command("data", "cub", "--data", str(tmp_path / "birds"), "--download")  # from the archive there
    assert (again.returncode, len(server.asked)) == (0, asked)

"""Published data sets: how each is split, downloads, and lists and files that are damaged or missing."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
import zlib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import digits, get_archives, image_sets, omniglot, omniglot_small
from pml_ext_train.data.published import Archive, Count

from .made_up import cars_folder, cub_folder, imagenet_folder, inshop_folder, jpeg, omniglot_zip, sop_folder

COUNTS = {"train": Count(6, 2), "test": Count(6, 2)}
QUERIES = {"train": Count(6, 2), "query": Count(2, 2), "gallery": Count(4, 2)}
IMAGENET = {"train": Count(8, 2), "gallery": Count(6, 2), "query": Count(2, 2)}


@pytest.fixture
def count(monkeypatch):
    """Makes other counts the published ones of a set."""

    def replace(name, counts=COUNTS, module=image_sets):
        monkeypatch.setattr(module, name, dataclasses.replace(getattr(module, name), counts=counts))

    return replace


def labels_of(splits):
    return {name: part.labels.tolist() for name, part in (("train", splits.train), *splits.tested().items())}


FIRST_HALF = {"train": [0] * 3 + [1] * 3, "test": [2] * 3 + [3] * 3}


@pytest.mark.parametrize("above", [False, True])
def test_cub_trains_on_the_first_classes(tmp_path, count, above):
    count("CUB")
    place = cub_folder(tmp_path / "CUB_200_2011")
    splits = image_sets.cub(tmp_path if above else place, 64)
    assert labels_of(splits) == FIRST_HALF
    assert splits.test.class_names == [f"{n:03}.Bird_{n}" for n in range(1, 5)]
    assert splits.test.paths[0] == place / "images" / "003.Bird_3" / "Bird_0.jpg"
    assert (splits.image_size, splits.channels, splits.crop) == (64, 3, True)
    boxed = image_sets.cub(place, 64, boxes=True)
    assert tuple(boxed.train[0][0].shape) == tuple(boxed.test.subset([1, 2])[0][0].shape) == (3, 8, 10)


def test_cars_train_on_the_first_classes(tmp_path, count):
    count("CARS196")
    splits = image_sets.cars196(cars_folder(tmp_path), 64)
    assert labels_of(splits) == {"train": [0, 1] * 3, "test": [2, 3] * 3}
    assert (splits.train.class_names[0], splits.test.paths[0].name) == ("Maker 0 2012", "000003.jpg")
    (tmp_path / "cars_annos.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match="cars_annos.mat: not the annotations of Cars196"):
        image_sets.cars196(tmp_path)


def test_official_training_cars_may_be_used_alone(tmp_path, monkeypatch, count):
    count("CARS196")
    place = cars_folder(tmp_path)
    with pytest.raises(DataError, match="expected 4,052"):
        image_sets.cars196(place, 64, official="train")
    monkeypatch.setattr(image_sets, "CARS196_OFFICIAL_TRAIN", {"train": Count(4, 2), "test": Count(4, 2)})
    splits = image_sets.cars196(place, 64, boxes=True, official="train")
    assert [path.name for path in splits.train.paths] == [f"{n:06}.jpg" for n in (1, 2, 9, 10)]
    assert splits.test.labels.tolist() == [2, 3] * 2
    assert tuple(splits.test[0][0].shape) == (3, 8, 10)  # pixels 2 to 9 and 3 to 12
    with pytest.raises(ConfigError, match="type 'train', or leave it out"):
        image_sets.cars196(place, 64, official="test")


def test_products_are_split_by_their_lists(tmp_path, count):
    count("SOP")
    sop_folder(tmp_path / "Stanford_Online_Products")
    splits = image_sets.sop(tmp_path, 64)
    assert labels_of(splits) == FIRST_HALF
    assert splits.train.class_names == ["bicycle_final/1000", "mug_final/1001", "bicycle_final/1002", "mug_final/1003"]


@pytest.mark.parametrize("layout", ["old", "new"])
def test_inshop_has_queries_and_a_gallery(tmp_path, count, layout):
    count("INSHOP", QUERIES)
    inshop_folder(tmp_path)
    if layout == "new":
        for name, folder in (("list_eval_partition.txt", "Eval"), ("img", "Img")):
            (tmp_path / folder).mkdir()
            shutil.move(tmp_path / name, tmp_path / folder)
    splits = image_sets.inshop(tmp_path, 64)
    assert labels_of(splits) == {"train": [0] * 3 + [1] * 3, "query": [2, 3], "gallery": [2, 2, 3, 3]}
    assert splits.query.class_names == [f"id_{n:08}" for n in range(4)]
    assert splits.gallery.paths[-1].name == "02_1_front.jpg"
    assert tuple(splits.gallery[0][0].shape) == (3, 16, 20)


def test_imagenet_is_divided_as_in_the_papers(tmp_path, count, monkeypatch):
    place = imagenet_folder(tmp_path)
    count("IMAGENET", IMAGENET)
    monkeypatch.setattr(image_sets, "PDDM", {"train": Count(None, 3), "test": Count(None, 1)})
    splits = image_sets.imagenet(place, 64)
    assert sorted(splits.train.labels.tolist()) == [0] * 4 + [1] * 4  # validation images train as well
    assert splits.gallery.labels.tolist() == [2] * 3 + [3] * 3
    assert [path.parent.parent.name for path in splits.query.paths] == ["val", "val"]
    assert splits.train.class_names[0] == "n01440764"
    pddm = image_sets.imagenet(place, 64, "pddm")
    assert (len(pddm.train), pddm.test.labels.tolist()) == (12, [3] * 4)
    shutil.rmtree(place / "val" / "n01440764")
    with pytest.raises(DataError, match="train and val have different folders, n01440764 first"):
        image_sets.imagenet(place, 64)


@pytest.mark.parametrize(
    ("make", "load", "name", "old", "new", "text"),
    [
        (
            cub_folder,
            lambda place: image_sets.cub(place, 64, boxes=True),
            "bounding_boxes.txt",
            "2 2.0",
            "2 left",
            r"image 2 \(001.Bird_1/Bird_1.jpg\) has no valid .*ValueError.*;",
        ),
        (
            cub_folder,
            image_sets.cub,
            "image_class_labels.txt",
            "5 2",
            "5 9",
            r"image 5 .*KeyError: '9'\); unpack CUB_200_2011.tgz again",
        ),
        (
            inshop_folder,
            image_sets.inshop,
            "list_eval_partition.txt",
            "query",
            "probe",
            "'probe' of img/.*00_1_front.jpg is not train, query or gallery; download the file again",
        ),
    ],
    ids=["box", "class", "part"],
)
def test_an_image_with_a_wrong_entry_is_named(tmp_path, count, make, load, name, old, new, text):
    count("CUB")
    file = make(tmp_path) / name
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=text):
        load(tmp_path)
    if name == "bounding_boxes.txt":
        assert len(image_sets.cub(tmp_path, 64).train) == 6  # boxes are not read unless they are used


def test_parents_are_listed_beside_their_children(tmp_path, count):
    file = tmp_path / "wordnet.is_a.txt"
    file.write_text("n1 n01440764\nn2 n01440764\nn1 n01440765\nn0 n1\n")
    count("IMAGENET", IMAGENET)
    assert image_sets.imagenet(imagenet_folder(tmp_path / "all"), 64, hierarchy=file).parents == {
        "n01440764": ["n1", "n2"],
        "n01440765": ["n1"],
        "n1": ["n0"],
    }


# Lists that do not match, and missing files


def test_a_missing_image_of_a_set_is_named(tmp_path, count):
    place = cub_folder(tmp_path)
    with pytest.raises(DataError, match="expected 5,864 training images of 100 classes, found 12 of 4; is the list"):
        image_sets.cub(place)
    count("CUB")
    (place / "images" / "001.Bird_1" / "Bird_1.jpg").unlink()
    with pytest.raises(
        DataError,
        match=r"Bird_1.jpg: no such file, but images.txt lists it \(1 are missing\); unpack CUB_200_2011.tgz again",
    ):
        image_sets.cub(place, 64)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 4 1 bicycle_final/1000_0.JPG\n", "the image bicycle_final/1000_0.JPG is in train and in test"),
        ("7 4 1 mug_final/1003_9.JPG\n", "expected 6 test images of 2 classes, found 7 of 2; is this another edition"),
        ("7 4", "Ebay_test.txt, line 8: '7 4' does not have 4 columns; unpack the archive again"),
    ],
)
def test_a_list_with_a_wrong_line_is_refused(tmp_path, count, line, message):
    count("SOP")
    place = sop_folder(tmp_path)
    jpeg(place / "mug_final" / "1003_9.JPG")
    with (place / "Ebay_test.txt").open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=message):
        image_sets.sop(place, 64)


@pytest.mark.parametrize(
    ("exists", "message"),
    [(False, "cub: no such folder; for what to get"), (True, "cub has no images.txt; for what to get")],
)
def test_a_missing_set_says_what_to_get(tmp_path, monkeypatch, exists, message):
    monkeypatch.setenv("PML_EXT_DATA", str(tmp_path))
    if exists:
        (tmp_path / "cub").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path}/{message}, and where to put it, type: pml-ext data cub"):
        image_sets.cub()


# Omniglot


SETS = {
    "ABOUT": (omniglot.omniglot, omniglot.BACKGROUND, omniglot.EVALUATION),
    "SMALL": (omniglot.omniglot_small, omniglot.TRAIN, omniglot.TEST),
}


@pytest.fixture(params=SETS)
def archives(request, tmp_path, count):
    """Two small archives of a set: their factory, and the paths of both."""
    factory, first, second = SETS[request.param]
    omniglot_zip(tmp_path / first, {"Greek": 3, "Latin": 2})
    omniglot_zip(tmp_path / second, {"Greek": 3, "Sanskrit": 4})
    with pytest.raises(DataError, match=r"expected (19,280|2,720) training images of .* classes, found 15 of 5"):
        factory(tmp_path)
    count(request.param, {"train": Count(15, 5), "test": Count(12, 4)}, omniglot)
    return factory, tmp_path / first, tmp_path / second


def test_omniglot_tests_on_unseen_alphabets(archives, tmp_path):
    factory, _, _ = archives
    splits = factory(tmp_path, image_size=21)
    assert splits.test.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {name.partition("/")[0] for name in splits.train.class_names} == {"Greek", "Latin"}
    assert splits.test.class_names[0] == "Sanskrit/character01"
    image, _ = splits.test[0]
    assert tuple(image.shape) == (1, 21, 21)
    assert image[0, :3].min() == 255  # ink, drawn in the uppermost rows, is bright
    assert image[0, 5:].max() == 0
    assert (splits.image_size, splits.channels) == (21, 1)
    with pytest.raises(ConfigError, match="from 8 to 105 pixels, not 500"):
        factory(tmp_path, image_size=500)


def test_damaged_or_missing_archives_are_named(archives, tmp_path):
    factory, first, second = archives
    broken = patch.object(zipfile.ZipFile, "read", side_effect=zlib.error("invalid block type"))
    with broken, pytest.raises(DataError, match=f"{first}: not a readable zip .* .invalid block"):
        factory(tmp_path)
    second.write_bytes(b"no zip")
    with pytest.raises(DataError, match=f"{second}: not a readable zip"):
        factory(tmp_path)
    second.unlink()
    with pytest.raises(DataError, match=f"has no {second.name}"):
        factory(tmp_path)


# Digits


def test_digits_are_halved_within_each_class(tmp_path):
    splits = digits()
    assert len(splits.train) + len(splits.test) == 1797
    for label in range(10):
        counts = [int((part.labels == label).sum()) for part in (splits.train, splits.test)]
        assert abs(counts[0] - counts[1]) <= 1
    image, label = splits.train[0]
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (1, 8, 8))
    assert splits.train.images.max() == 255
    assert torch.equal(digits().test.images, splits.test.images)
    with pytest.raises(ConfigError, match="leave out --data"):
        digits(tmp_path)


# Downloads


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
    assert {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.jpg")} == {
        "set/images/1.jpg": b"one",
        "set/images/2.jpg": b"two",
    }
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
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "other",
        "other/kept.txt",
        "place",
        f"place/{name}",
    ]


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
    assert {each["name"] for each in json.loads(pml_ext_command("data", "--json").stdout)} >= {
        "cub",
        "cars196",
        "sop",
        "inshop",
        "imagenet",
        "omniglot",
    }
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
    monkeypatch.setattr(
        image_sets,
        "CUB",
        dataclasses.replace(
            image_sets.CUB,
            archives=(archive(server, "CUB_200_2011.tgz", tarred(entries)),),
            counts={"train": Count(2, 2), "test": Count(2, 2)},
        ),
    )
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

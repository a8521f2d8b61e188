"""The page over HTTP, served by the command: what it shows, what it refuses, what it gives away."""

import base64
import html
import io
import re
import shutil
from urllib.parse import urlencode

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext_browse import open_collections
from pml_ext_search.open_set.calibration import FILE
from pml_ext_train.files import read_json, write_json

from ..search.conftest import full, write_digits
from .asking import PNG, ask, post, read, upload

server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)


def test_a_click_shows_the_nearest(served):
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


def test_a_small_class_is_counted_by_itself(served):
    """A class has about twenty images, of which all could be among the fifty nearest."""
    page = html.unescape(ask(served, "/?run=0&image=5&k=50")[2].decode())
    counts = re.findall(r": (\d+) of the (\d+) others of the same class", page)
    assert len(counts) == 2
    for right, others in counts:
        assert 0 < int(right) <= int(others) < 25
    assert page.count('type="number"') == 1


def test_views_of_unseen_classes_only(served):
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


def test_an_upload_shows_the_nearest(served):
    status, headers, _ = upload(served, (served.photos / "0" / "0010.png").read_bytes(), "<b>mine.png")
    assert status == 303
    status, text = read(served, headers["Location"] + "&k=3")
    assert status == 200
    assert text.count(".png") == 1 + 2 * 3 + 48
    content = ask(served, headers["Location"])[2]
    assert b"&lt;b&gt;mine.png" in content
    picture = base64.b64decode(re.search(rb'src="data:image/jpeg;base64,([^"]+)"', content)[1])
    assert Image.open(io.BytesIO(picture)).size == (480, 480)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        *((content, "mine.png: not a readable image") for content in (b"no image", b"")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "mine.png: not a readable image"),
        (b"P4\n7200 7100\n", "more than 50 megapixels"),
        (b"P4\n50000 50000\n", "more than 50 megapixels"),  # of which Pillow warns
    ],
)
def test_an_upload_is_refused_before_it_is_decoded(served, content, text):
    status, _, page = upload(served, content)
    assert (status, text in page.decode()) == (400, True)


def test_a_refused_upload_leaves_no_file(pair, tmp_path, monkeypatch):
    page = server.Page(pair, tmp_path)
    monkeypatch.setattr("pml_ext_browse.uploads.thumbnail", full)
    with pytest.raises(OSError, match="No space left"):
        page.uploads.keep(io.BytesIO(PNG), "mine.png")
    assert [*tmp_path.iterdir()] == []


def text_of(page, photograph):
    """The answer of the page to an uploaded photograph, without tags."""
    token = page.uploads.keep(io.BytesIO(photograph.read_bytes()), photograph.name)
    content, status = page.draw("query", {"upload": token})
    assert status == 200
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", content)).split())


@pytest.mark.filterwarnings("ignore:known within")
def test_a_photograph_is_known_or_new(trained, tmp_path):
    """The answers are those of the run, and each side of a stranger's distance is another answer."""
    write_digits(tmp_path / "enrolled", range(120))
    for folder in (tmp_path / "enrolled").iterdir():  # names that training does not know, and that have to be escaped
        folder.rename(folder.with_name(f"seal <{folder.name}>"))
    stranger = tmp_path / "stranger.png"
    Image.effect_noise((8, 8), 90).save(stranger)
    copied = shutil.copy(next((tmp_path / "enrolled" / "seal <3>").iterdir()), tmp_path / "mine.png")
    run = load_run(shutil.copytree(trained / "one", tmp_path / "run", ignore=lambda *_: ["collection"]), "cpu")
    run.index(tmp_path / "enrolled")
    threshold = run.calibrate(0.15).threshold
    page = server.Page(open_collections([run.folder], None, "cpu"), tmp_path)
    for file in (copied, stranger):
        (wanted,) = run.identify(file, 1)
        word = "Known" if wanted.known else "New"
        told = f"{word}: the nearest class is {wanted.classes[0]}, at {wanted.distances[0]:.3f}; "
        assert told + f"known is what is within {threshold:.3f}" in text_of(page, file)
    assert "Known: the nearest class is seal <3>" in text_of(page, copied)
    kept = run.place / FILE
    write_json(kept, read_json(kept) | {"threshold": wanted.distances[0] - 1e-3})
    assert "New: the nearest class is seal <" in text_of(page, stranger)
    write_json(kept, read_json(kept) | {"threshold": wanted.distances[0] + 1e-3})
    assert "Known: the nearest class is seal <" in text_of(page, stranger)


def test_without_a_threshold_the_reason_is_shown(trained, few):
    """Trained on all enrolled classes, another folder than the index, and no classes at all."""
    photograph = few.photos / "0" / "0000.png"
    run = load_run(few.run, "cpu")
    run.index(few.photos)
    text = text_of(server.Page(open_collections([few.run], None, "cpu"), few.place), photograph)
    assert "Known or new cannot be decided by pml-ext identify: the run was trained on all 2 enrolled classes" in text
    assert "0.000" in text  # the nearest are shown
    (few.photos / "2").rename(few.place / "elsewhere")
    other = open_collections([few.run], few.photos, "cpu", lambda _: None)
    text = text_of(server.Page(other, few.place), photograph)
    assert f"the index of {few.run} has other images than this page" in text
    flat = (few.photos / "0").rename(few.place / "flat")
    text = text_of(server.Page(open_collections([few.run], flat, "cpu", lambda _: None), few.place), flat / "0000.png")
    assert "Known" not in text
    assert "New:" not in text


def test_clusters_are_shown_and_checked(served):
    status, text = read(served, "/clusters?clusters=3&open=0")
    assert (status, "3 clusters of one by k-means" in text) == (200, True)
    assert re.search(r"cluster 0: \d+ images, \d+% ", text)
    status, text = read(served, "/clusters?run=1&clusters=400")
    assert (status, "400: wanted 400 images or more" in text) == (400, True)


def test_small_clusters_are_put_aside_and_joined(served):
    """Links, forms and the table keep how the page was made."""
    _, text = read(served, "/clusters?clusters=30&min_size=7")
    count, rest = map(int, re.search(r"(\d+) clusters of one by k-means; rest: (\d+) images in smaller", text).groups())
    assert f"rest: {rest} images" in text.split("Join the marked clusters")[1]
    content = html.unescape(ask(served, "/clusters?clusters=30&min_size=7&joined=0-1&join=0&join=5")[2].decode())
    assert f"{count - 2} clusters of one" in content
    assert all("min_size=7&joined=0-1%2C0-5" in link for link in re.findall(r'class="card" href="([^"]*)"', content))
    assert re.search(r'href="/clusters\?[^"]*joined=0-1&run=0">Undo the last join', content)
    fields = {"run": 0, "clusters": 30, "min_size": 7, "joined": "0-1,0-5", "cluster0": "some", "cluster-1": "rest"}
    rows = post(served, "/names", fields)[2].decode().splitlines()[1:]
    shown = int(re.search(r"cluster 0: (\d+) images", content)[1])
    assert shown - 2 <= len(rows) <= shown  # without missing files
    for joined, wrong in (("0-x", "wanted numbers of clusters"), ("0-77", "there are no such groups to join")):
        status, text = read(served, f"/clusters?clusters=30&joined={joined}")
        assert (status, wrong in text) == (400, True)
    post(served, "/names", fields | {"cluster0": "other"})
    assert 'value="other"' in ask(served, "/clusters?clusters=30&min_size=7&joined=0-1,0-5")[2].decode()
    assert post(served, "/names/keep", fields | {"cluster0": ""})[0] == 204
    assert 'value="other"' not in ask(served, "/clusters?clusters=30")[2].decode()


def test_decided_labels_are_a_table(trained, photos, tmp_path):
    """Of all images with a class; decisions outlive the page."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    wrong = sorted((folder / "7").iterdir())[0]
    wrong = wrong.rename(folder / "4" / wrong.name)
    run = shutil.copytree(trained / "one", tmp_path / "run", ignore=lambda *_: ["collection"])
    load_run(run, "cpu").index(folder)

    def made():
        return server.Page(open_collections([run], None, "cpu"), tmp_path)

    page = made()
    found = page.collections[0].suspicious
    number = page.collections[0].numbers[f"4/{wrong.name}"]
    (mine,) = [each for each in found if each.number == number]
    assert (mine.given, mine.likely, mine.margin > 0) == ("4", "7", True)
    page.keep_labels({f"label{mine.number}": "accept", f"label{found[-1].number}": "keep", "label999": "accept"})
    (folder / "2" / "0002.png").unlink()
    page = made()
    content, _ = page.draw("labels", {"folder": "4"})
    assert f'name="label{number}" value="accept" checked>accept <b>7</b>' in content
    assert re.search(r"1 to (\d+) of \1<", content)
    rows = dict(line.rsplit(",", 1) for line in page.labels({}).splitlines()[1:])
    assert len(rows) == 199
    assert {path: name for path, name in rows.items() if not path.startswith(f"{name}/")} == {f"4/{wrong.name}": "7"}


def test_right_and_wrong_answers_are_shown(served):
    status, text = read(served, "/answers")
    assert status == 200
    assert re.search(r"one , classes of training: Recall@1 \d+\.\d%, .* of \d+ of 18\d images", text)
    assert re.search(r"two , unseen classes: Recall@1 \d+\.\d%, .* of \d+ of \d\d images", text)
    assert re.search(r"Most frequent confusions?: \S.* retrieved for .* queries \(\d+\)", text)
    for kind in ("right", "disputed"):
        assert "An image and its nearest other one: " in read(served, f"/answers?kind={kind}&run=1")[1]
    assert "An image and its nearest other one: 61 to 120 of " in read(served, "/answers?kind=right&start=61")[1]


@pytest.mark.parametrize("path", ["/map", "/map?color=cluster&method=pca&clusters=4"])
def test_a_map_has_all_images(served, path):
    content = ask(served, path)[2].decode()
    assert "<img src=x" not in content
    assert len(re.findall(r'\.png"\]', content)) == 202
    assert 'role="img" aria-label="Map of the embeddings of one: 202 images' in content


def test_a_sub_folder_restricts_every_view(served):
    """Also one whose name has to be escaped; links carry it on."""
    folder = "price $5_$6"
    query = urlencode({"folder": folder})
    for path in ("/?k=4", "/?image=5&k=4", "/clusters?clusters=3", "/map?method=pca", "/answers?kind=right"):
        content = html.unescape(ask(served, f"{path}{'&' if '?' in path else '?'}{query}")[2].decode())
        assert f"Only what is below <b>{folder}</b>: " in content, path
        main = content.split("<main>")[1]
        shown = re.findall(r'"([^"]+/\d{4}\.png)"\]', main) or re.findall(
            r'<a class="card[^>]*\n? *title="([^"]+)"', main
        )
        if path.startswith("/clusters"):
            shown = re.findall(r'alt="([^"]+)"', main)
        if not path.startswith("/answers"):
            assert len(shown) > 3, path
            assert all(name.startswith(f"{folder}/") for name in shown), path
        links = re.findall(r'<a [^>]*href="(/[^"]*)"', content)
        assert links
        assert all(query in link for link in links), path
        assert f"<option selected>{folder}</option>" in content
    _, text = read(served, f"/answers?kind=right&{query}")
    of = len([*(served.photos / folder).iterdir()])
    assert re.search(rf"unseen classes: Recall@1 \d+\.\d%, the nearest other image of \d+ of {of} images", text)
    assert "classes of training: Recall@1" not in text.split("two ,")[0]
    status, text = read(served, "/?folder=nowhere")
    assert (status, "folder=nowhere: no image of" in text) == (400, True)
    assert read(served, "/?folder=0&unseen=1")[0] == 400  # none of its classes is unseen


def test_an_opened_cluster_has_a_name(served):
    content = ask(served, "/clusters?clusters=3&open=1")[2].decode()
    fields = re.findall(r'<input form="names" name="(cluster\d)"', content)
    assert sorted(fields) == ["cluster0", "cluster1", "cluster2"]  # once each
    assert fields[0] == "cluster1"
    assert re.search(r"Its name\s+<input", content)
    query = {"run": 0, "clusters": 2, "folder": "3", "cluster1": "three"}
    rows = post(served, "/names", query)[2].decode().splitlines()[1:]
    assert all(row.startswith("3/") for row in rows)
    assert 0 < len(rows) < len([*(served.photos / "3").iterdir()])


def test_many_sub_folders_are_typed(trained, tmp_path, monkeypatch):
    write_digits(tmp_path / "many", range(30))
    (collection,) = open_collections([trained / "one"], tmp_path / "many", "cpu", lambda _: None)
    page = server.Page([collection], tmp_path)
    assert '<select name="folder">' in page.draw("query", {})[0]
    monkeypatch.setitem(page._render.__globals__["_TEMPLATES"].globals, "LISTED", 3)
    text, status = page.draw("query", {"folder": "4/"})
    assert status == 200
    assert '<input name="folder" value="4"' in text


def test_one_image_and_no_classes(trained, tmp_path):
    write_digits(tmp_path / "some", range(1))
    (folder,) = (tmp_path / "some").iterdir()
    (collection,) = open_collections([trained / "one"], folder, "cpu", lambda _: None)
    page = server.Page([collection], tmp_path)
    text, status = page.draw("query", {})
    assert (status, "There is no other image" in text, "Sub-folder" in text) == (200, True, False)
    assert "Clusters" in text
    assert "Right and wrong" not in text
    assert page.draw("labels", {})[1] == 400
    for tab in ("clusters", "map", "copies"):
        assert page.draw(tab, {})[1] == 200, tab
    page.begin_copies({})
    page.copies.thread.join()
    assert "No image is a copy of another one." in page.draw("copies", {})[0]
    assert page.draw("answers", {})[1] == 400

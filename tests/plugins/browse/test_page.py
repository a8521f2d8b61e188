"""The page: what it shows, what it refuses, uploaded photographs, and names that outlive it."""

import base64
import html
import io
import re
import shutil
from types import SimpleNamespace
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext_browse import open_collections
from pml_ext_browse.choices import Choices
from pml_ext_browse.uploads import MOST, Uploads
from pml_ext_search.open_set.calibration import FILE
from pml_ext_train.files import read_json, write_json

from ..search.conftest import full, write_digits
from .asking import PNG, ask, content_of, post, read, upload, words

SHOWN = {
    "/?k=4": r'<a class="card[^>]*\n? *title="([^"]+)"',
    "/?image=5&k=4": r'<a class="card[^>]*\n? *title="([^"]+)"',
    "/clusters?clusters=3": r'alt="([^"]+)"',
    "/map?method=pca": r'"([^"]+/\d{4}\.png)"\]',
    "/answers?kind=right": None,
}
PATHS = [f"{number}.png" for number in range(12)]


def test_a_click_shows_the_nearest(served):
    content = content_of(ask(served, "/?run=0&image=5&k=4"))
    text = words(content)
    assert "202 images of photos, 10 classes" in text
    assert "2 of 202 images are missing; placeholders are shown" in text  # one is gone, one leads outside
    assert text.count("of 4 of the same class") == 2
    assert "Nearest by one" in text
    assert "Nearest by two" in text
    pictures = re.findall(r"<img [^>]*>", content)
    assert len(pictures) == 1 + 2 * 4 + 48
    assert all(re.search(r'alt="[^"]+\.png"', each) for each in pictures)
    assert "image=202: wanted a number from 0 to 201" in read(served, "/?image=202", 400)
    page = content_of(ask(served, "/?k=4"))  # an example
    assert (page.count("<h1>"), page.count("Nearest by")) == (1, 2)
    assert len(re.findall("<img ", page)) == 1 + 2 * 4 + 47
    assert 'id="busy" role="status" hidden' in page
    assert re.search(r"<b>[^<]+</b>/<wbr>[^<]+\.png", page)  # folder and name


def test_a_small_class_is_counted_by_itself(served):
    """A class has about twenty images, and all of them could be among the fifty nearest."""
    page = html.unescape(content_of(ask(served, "/?run=0&image=5&k=50")))
    counts = re.findall(r": (\d+) of the (\d+) others of the same class", page)
    assert len(counts) == 2
    for right, others in counts:
        assert 0 < int(right) <= int(others) < 25
    assert page.count('type="number"') == 1


def test_views_of_unseen_classes_only(served):
    """The run knows no class of the renamed ones; the other run has another half of the classes."""
    path = "price $5_$6/"
    for tab in ("/?unseen=1&k=1", "/map?unseen=1&method=pca"):
        content = html.unescape(content_of(ask(served, tab)))
        assert 'name="unseen" value="1" checked' in content
        listed = re.findall(r'"([^"]+/\d{4}\.png)"\]', content) or re.findall(r'alt="([^"]+)"', content)[3:]
        assert len(listed) > 5
        assert all(name.startswith(path) for name in listed)
    text = read(served, "/answers?kind=right&unseen=1")
    assert text.count("(an unseen class)") == int(re.search(r"1 to (\d+) of \1 ", text)[1])
    text = read(served, "/clusters?clusters=10&unseen=1")
    assert re.search(r" [1-3] clusters? of one by k-means, mostly of unseen classes", text)


def test_an_upload_shows_the_nearest(served):
    status, headers, _ = upload(served, (served.photos / "0" / "0010.png").read_bytes(), "<b>mine.png")
    assert status == 303
    content = content_of(ask(served, headers["Location"] + "&k=3"))
    assert words(content).count(".png") == 1 + 2 * 3 + 48
    assert "&lt;b&gt;mine.png" in content
    picture = base64.b64decode(re.search(r'src="data:image/jpeg;base64,([^"]+)"', content)[1])
    assert Image.open(io.BytesIO(picture)).size == (480, 480)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        *((content, "mine.png: not a readable image") for content in (b"no image", b"")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "mine.png: not a readable image"),
        (b"P4\n7200 7100\n", "more than 50 megapixels"),
        (b"P4\n50000 50000\n", "more than 50 megapixels"),  # Pillow warns about it
    ],
)
def test_an_upload_is_refused_before_it_is_decoded(served, content, text):
    assert text in content_of(upload(served, content), 400)


def test_a_refused_upload_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_browse.uploads.thumbnail", full)
    with pytest.raises(OSError, match="No space left"):
        Uploads(tmp_path).keep(io.BytesIO(PNG), "mine.png")
    assert [*tmp_path.iterdir()] == []


def page_of(run, folder, uploads):
    """The page of a run's images, or of a folder's."""
    server = pytest.importorskip("pml_ext_browse.server", reason="needs the extra browse", exc_type=ImportError)
    return server.Page(open_collections([run], folder, "cpu", lambda _: None), uploads)


def shown(page, tab, **options):
    """The content that a page draws."""
    content, status = page.draw(tab, options)
    assert status == 200
    return content


def text_of(page, photograph):
    """The answer of the page to an uploaded photograph, without tags."""
    token = page.uploads.keep(io.BytesIO(photograph.read_bytes()), photograph.name)
    content = shown(page, "query", upload=token)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", content)).split())


def test_a_photograph_is_known_or_new(trained, tmp_path):
    """The answers equal the run's, and a stranger's distance decides between two of them."""
    write_digits(tmp_path / "enrolled", range(120))
    for folder in (tmp_path / "enrolled").iterdir():  # names that training does not know, and that have to be escaped
        folder.rename(folder.with_name(f"seal <{folder.name}>"))
    stranger = tmp_path / "stranger.png"
    Image.effect_noise((8, 8), 90).save(stranger)
    copied = shutil.copy(next((tmp_path / "enrolled" / "seal <3>").iterdir()), tmp_path / "mine.png")
    run = load_run(shutil.copytree(trained / "one", tmp_path / "run", ignore=lambda *_: ["collection"]), "cpu")
    run.index(tmp_path / "enrolled")
    threshold = run.calibrate(0.15).threshold
    page = page_of(run.folder, None, tmp_path)
    for file in (copied, stranger):
        (wanted,) = run.identify(file, 1)
        word = "Known" if wanted.known else "New"
        told = f"{word}: the nearest class is {wanted.classes[0]}, at {wanted.distances[0]:.3f}; "
        assert told + f"known is what is within {threshold:.3f}" in text_of(page, file)
    assert "Known: the nearest class is seal <3>" in text_of(page, copied)
    kept = run.place / FILE
    for word, more in (("New", -1e-3), ("Known", 1e-3)):
        write_json(kept, read_json(kept) | {"threshold": wanted.distances[0] + more})
        assert f"{word}: the nearest class is seal <" in text_of(page, stranger)


def test_without_a_threshold_the_reason_is_shown(trained, few):
    """Trained on all enrolled classes, another folder than the index, and no classes at all."""
    photograph = few.photos / "0" / "0000.png"
    load_run(few.run, "cpu").index(few.photos)
    text = text_of(page_of(few.run, None, few.place), photograph)
    assert "Known or new cannot be decided by pml-ext identify: the run was trained on all 2 enrolled classes" in text
    assert "0.000" in text  # the nearest are shown
    (few.photos / "2").rename(few.place / "elsewhere")
    text = text_of(page_of(few.run, few.photos, few.place), photograph)
    assert f"the index of {few.run} has other images than this page" in text
    flat = (few.photos / "0").rename(few.place / "flat")
    text = text_of(page_of(few.run, flat, few.place), flat / "0000.png")
    assert "Known" not in text
    assert "New:" not in text


def test_clusters_are_shown_and_checked(served):
    text = read(served, "/clusters?clusters=3&open=0")
    assert "3 clusters of one by k-means" in text
    assert re.search(r"cluster 0: \d+ images, \d+% ", text)
    assert "400: wanted 400 images or more" in read(served, "/clusters?run=1&clusters=400", 400)


def test_small_clusters_are_put_aside_and_joined(served):
    """Links, forms and the table keep how the page was made."""
    line = "/clusters?clusters=30&min_size=7"
    text = read(served, line)
    count, rest = map(int, re.search(r"(\d+) clusters of one by k-means; rest: (\d+) images in smaller", text).groups())
    assert f"rest: {rest} images" in text.split("Join the marked clusters")[1]
    content = html.unescape(content_of(ask(served, f"{line}&joined=0-1&join=0&join=5")))
    assert f"{count - 2} clusters of one" in content
    assert all("min_size=7&joined=0-1%2C0-5" in link for link in re.findall(r'class="card" href="([^"]*)"', content))
    assert re.search(r'href="/clusters\?[^"]*joined=0-1&run=0">Undo the last join', content)
    fields = {"run": 0, "clusters": 30, "min_size": 7, "joined": "0-1,0-5", "cluster0": "some", "cluster-1": "rest"}
    rows = content_of(post(served, "/names", fields)).splitlines()[1:]
    size = int(re.search(r"cluster 0: (\d+) images", content)[1])
    assert size - 2 <= len(rows) <= size  # without missing files
    for joined, wrong in (("0-x", "wanted numbers of clusters"), ("0-77", "there are no such groups to join")):
        assert wrong in read(served, f"/clusters?clusters=30&joined={joined}", 400)
    post(served, "/names", fields | {"cluster0": "other"})
    assert 'value="other"' in content_of(ask(served, f"{line}&joined=0-1,0-5"))
    assert post(served, "/names/keep", fields | {"cluster0": ""})[0] == 204
    assert 'value="other"' not in content_of(ask(served, "/clusters?clusters=30"))


def test_decided_labels_are_a_table(trained, photos, tmp_path):
    """Of all images with a class; decisions outlive the page."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    wrong = sorted((folder / "7").iterdir())[0].name
    (folder / "7" / wrong).rename(folder / "4" / wrong)
    run = shutil.copytree(trained / "one", tmp_path / "run", ignore=lambda *_: ["collection"])
    load_run(run, "cpu").index(folder)
    page = page_of(run, None, tmp_path)
    (collection,) = page.collections
    number = collection.numbers[f"4/{wrong}"]
    (mine,) = [each for each in collection.suspicious if each.number == number]
    assert (mine.given, mine.likely, mine.margin > 0) == ("4", "7", True)
    last = collection.suspicious[-1].number
    page.keep_labels({f"label{number}": "accept", f"label{last}": "keep", "label999": "accept"})
    (folder / "2" / "0002.png").unlink()
    page = page_of(run, None, tmp_path)
    content = shown(page, "labels", folder="4")
    assert f'name="label{number}" value="accept" checked>accept <b>7</b>' in content
    assert re.search(r"1 to (\d+) of \1<", content)
    rows = dict(line.rsplit(",", 1) for line in page.labels({}).splitlines()[1:])
    assert len(rows) == 199
    assert {path: name for path, name in rows.items() if not path.startswith(f"{name}/")} == {f"4/{wrong}": "7"}


def test_right_and_wrong_answers_are_shown(served):
    text = read(served, "/answers")
    assert re.search(r"one , classes of training: Recall@1 \d+\.\d%, .* of \d+ of 18\d images", text)
    assert re.search(r"two , unseen classes: Recall@1 \d+\.\d%, .* of \d+ of \d\d images", text)
    assert re.search(r"Most frequent confusions?: \S.* retrieved for .* queries \(\d+\)", text)
    for options, range_ in (
        ("kind=right&run=1", ""),
        ("kind=disputed&run=1", ""),
        ("kind=right&start=61", "61 to 120"),
    ):
        assert f"An image and its nearest other one: {range_}" in read(served, f"/answers?{options}")


@pytest.mark.parametrize("path", ["/map", "/map?color=cluster&method=pca&clusters=4"])
def test_a_map_has_all_images(served, path):
    content = content_of(ask(served, path))
    assert "<img src=x" not in content
    assert len(re.findall(r'\.png"\]', content)) == 202
    assert 'role="img" aria-label="Map of the embeddings of one: 202 images' in content


@pytest.mark.parametrize("path", SHOWN)
def test_a_sub_folder_restricts_every_view(served, path):
    """Also one whose name has to be escaped; links carry it on."""
    folder = "price $5_$6"
    query = urlencode({"folder": folder})
    content = html.unescape(content_of(ask(served, f"{path}{'&' if '?' in path else '?'}{query}")))
    assert f"Only what is below <b>{folder}</b>: " in content
    if SHOWN[path]:
        names = re.findall(SHOWN[path], content.split("<main>")[1])
        assert len(names) > 3
        assert all(name.startswith(f"{folder}/") for name in names)
    links = re.findall(r'<a [^>]*href="(/[^"]*)"', content)
    assert links
    assert all(query in link for link in links)
    assert f"<option selected>{folder}</option>" in content


def test_recall_is_that_of_a_sub_folder(served):
    folder = "price $5_$6"
    text = read(served, f"/answers?kind=right&{urlencode({'folder': folder})}")
    of = len([*(served.photos / folder).iterdir()])
    assert re.search(rf"unseen classes: Recall@1 \d+\.\d%, the nearest other image of \d+ of {of} images", text)
    assert "classes of training: Recall@1" not in text.split("two ,")[0]
    assert "folder=nowhere: no image of" in read(served, "/?folder=nowhere", 400)
    assert read(served, "/?folder=0&unseen=1", 400)  # none of its classes is unseen


def test_an_opened_cluster_has_a_name(served):
    content = content_of(ask(served, "/clusters?clusters=3&open=1"))
    fields = re.findall(r'<input form="names" name="(cluster\d)"', content)
    assert sorted(fields) == ["cluster0", "cluster1", "cluster2"]  # once each
    assert fields[0] == "cluster1"
    assert re.search(r"Its name\s+<input", content)
    query = {"run": 0, "clusters": 2, "folder": "3", "cluster1": "three"}
    rows = content_of(post(served, "/names", query)).splitlines()[1:]
    assert all(row.startswith("3/") for row in rows)
    assert 0 < len(rows) < len([*(served.photos / "3").iterdir()])


def test_many_sub_folders_are_typed(trained, tmp_path, monkeypatch):
    page = page_of(trained / "one", write_digits(tmp_path / "many", range(30)), tmp_path)
    assert '<select name="folder">' in shown(page, "query")
    monkeypatch.setitem(page._render.__globals__["_TEMPLATES"].globals, "LISTED", 3)
    assert '<input name="folder" value="4"' in shown(page, "query", folder="4/")


def test_one_image_and_no_classes(trained, tmp_path):
    (folder,) = write_digits(tmp_path / "some", range(1)).iterdir()
    page = page_of(trained / "one", folder, tmp_path)
    text = shown(page, "query")
    assert "There is no other image" in text
    assert "Sub-folder" not in text
    assert "Clusters" in text
    assert "Right and wrong" not in text
    for tab in ("clusters", "map"):
        assert shown(page, tab)
    for tab in ("labels", "answers"):
        assert page.draw(tab, {})[1] == 400, tab
    page.begin_copies({})
    page.copies.thread.join()
    assert "No image is a copy of another one." in shown(page, "copies")


def test_the_latest_uploads_are_kept(tmp_path):
    uploads = Uploads(tmp_path)
    first = uploads.keep(io.BytesIO(PNG), "first.png")
    tokens = [uploads.keep(io.BytesIO(PNG), f"{number}.png") for number in range(MOST - 2)]
    tokens.append(uploads.refuse("notes.txt", "notes.txt: not a readable image"))
    assert [each.name for each in uploads.of(f"{first},{tokens[-1]}")] == ["first.png", "notes.txt"]
    assert uploads.of(first)[0].file.read_bytes() == PNG
    uploads.keep(io.BytesIO(PNG), "last.png")
    with pytest.raises(DataError, match="no longer kept; drop it again"):
        uploads.of(f"{tokens[0]},{first}")
    assert len([*tmp_path.iterdir()]) == MOST - 1  # one was refused
    assert uploads.of(tokens[-1])[0].problem == "notes.txt: not a readable image"


def test_a_name_of_thousands_of_letters_is_cut(tmp_path):
    uploads = Uploads(tmp_path)
    (kept,) = uploads.of(uploads.keep(io.BytesIO(PNG), "a" * 5000 + ".png"))
    assert len(kept.name) <= 200
    assert kept.name.endswith(".png")
    with pytest.raises(DataError) as caught:
        uploads.keep(io.BytesIO(b"none"), "b" * 5000)
    assert len(str(caught.value)) < 500
    assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize(
    ("image", "share", "text"),
    [
        (Image.new("1", (1, 60_000)), 1, r"^it.png: 1 x 60000 pixels become more than .*; crop the image"),
        (Image.effect_noise((64, 64), 90), 0.7, "^it.png: not a readable image"),
    ],
)
def test_tall_and_damaged_photographs_leave_no_file(tmp_path, image, share, text):
    """1 x 60,000 pixels are a file of some 200 bytes, and 1.5 GB once the shorter side is resized."""
    file = io.BytesIO()
    image.save(file, "PNG")
    with pytest.raises(DataError, match=text):
        Uploads(tmp_path).keep(io.BytesIO(file.getvalue()[: int(share * file.tell())]), "it.png")
    assert [*tmp_path.iterdir()] == []


def grouped(*groups):
    """A grouping of twelve images; those that are in no group are the rest."""
    numbers = np.full(12, -1)
    clusters = [SimpleNamespace(number=number, members=members) for number, members in enumerate(groups)]
    for each in clusters:
        numbers[each.members] = each.number
    return SimpleNamespace(numbers=numbers, clusters=clusters)


FIRST = grouped([0, 1, 2, 3, 4], [5, 6, 7], [8, 9])


@pytest.fixture
def choices(tmp_path):
    made = Choices(tmp_path, tmp_path / "photos")
    made.name({0: "heron", 1: "egret", 2: ""}, FIRST, PATHS)
    return made


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (([0, 1, 2, 3, 4], [5, 6, 7], [8, 9]), {0: ("heron", 5), 1: ("egret", 3)}),
        (([5, 6, 7], [0, 1, 2], [3, 4], [8]), {0: ("egret", 3), 1: ("heron", 3), 2: ("heron", 2)}),  # divided
        (([*range(12)],), {0: ("heron", 5)}),  # joined: the name of the most
        (([0, 1, 2, 3, 4, 10, 11], [5, 6, 8], [7, 9]), {0: ("heron", 5), 1: ("egret", 2)}),
        (([4, 8, 9], [0, 1, 2, 3]), {1: ("heron", 4)}),
    ],
)
def test_names_follow_most_of_their_images(choices, groups, names):
    assert choices.names_of(grouped(*groups), PATHS) == names


def test_names_that_another_clustering_hides_stay(choices):
    choices.name(
        {0: "heron", 1: "gull"}, grouped([*range(10)], [10, 11]), PATHS
    )  # the first was shown, the second was typed
    assert choices.names_of(FIRST, PATHS) == {0: ("heron", 5), 1: ("egret", 3)}
    assert choices.names["11.png"] == "gull"


@pytest.mark.parametrize("name", ["night heron", ""])
def test_a_changed_name_is_replaced_everywhere(choices, name):
    choices.name({0: name, 1: ""}, grouped([0, 1, 2, 3], [4, 10, 11]), PATHS)
    assert {*choices.names.values()} == {name, "egret"} - {""}
    assert "4.png" not in choices.names


def test_names_and_labels_outlive_the_page(choices, tmp_path):
    other = Choices(tmp_path, tmp_path / "others")
    assert other.names == {}
    other.labels["0.png"] = "gull"
    other.save()
    assert Choices(tmp_path, tmp_path / "photos").names_of(FIRST, PATHS) == choices.names_of(FIRST, PATHS)
    assert read_json(tmp_path / "browse.json")[str(tmp_path / "others")] == {"names": {}, "labels": {"0.png": "gull"}}


def test_a_file_that_fails_is_reported(choices, tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_browse.choices.write_json", full)
    choices.name({2: "gull"}, FIRST, PATHS)
    assert choices.problem.startswith("names and labels are lost when the page closes: ")
    assert choices.names["9.png"] == "gull"
    (tmp_path / "browse.json").write_text("[1")
    with pytest.raises(DataError, match=r"browse.json: damaged \(.*\); to begin without names, delete it"):
        Choices(tmp_path, tmp_path / "photos")

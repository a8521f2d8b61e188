"""Known or new: photographs of enrolled and of other individuals, the kept threshold, and the commands."""

import json
import shlex
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.collection.problems import RetrievalWarning
from pml_ext_search.open_set.calibration import FILE, read_calibration
from pml_ext_search.open_set.identify import Identifier

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.RetrievalWarning")


def write(place, digit, numbers, name):
    found = load_digits()
    rows = np.flatnonzero(found.target == digit)
    for number in numbers:
        file = place / name / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((found.images[rows[number]] * 255 / 16).round().astype(np.uint8)).save(file)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Six enrolled individuals of ten photographs, further ones of two of them, and four other individuals."""
    place = tmp_path_factory.mktemp("individuals")
    for digit in range(6):
        write(place / "enrolled", digit, range(10), f"seal {digit}")
    for digit in (0, 5):
        write(place / "more", digit, range(10, 20), f"seal {digit}")
    for digit in range(6, 10):
        write(place / "more", digit, range(20), f"stranger {digit}")
    return place


@pytest.fixture(scope="module")
def run_folder(runs, photographs, tmp_path_factory):
    place = shutil.copytree(runs[0], tmp_path_factory.mktemp("identify") / "run")
    load_run(place, "cpu").index(photographs / "enrolled")
    return place


@pytest.fixture
def run(run_folder):
    (run_folder / "collection" / FILE).unlink(missing_ok=True)
    return load_run(run_folder, "cpu")


def slow_threshold(run, far):
    """The order statistic of the images, each against the centers of the other classes."""
    embedded = run.indexed_images()
    points = embedded.embeddings.double()
    names = np.array(embedded.classes)
    smallest = []
    for row, name in enumerate(names):
        centers = [points[names == other].mean(0) for other in set(names) - {name}]
        smallest.append(min(float((points[row] - center / center.norm()).norm()) for center in centers))
    accepted = 0  # of ten images a class
    while 6 / 5 * ((accepted + 1) / 10 + 1) / 7 <= far:
        accepted += 1
    return sorted(smallest)[accepted]  # the first that is not accepted


def test_the_threshold_is_that_of_a_slow_loop(run):
    with pytest.warns(
        RetrievalWarning,
        match=r"\(30 % false acceptances\), calibrated on 60 images of 6 .* at most 29.1 %",
    ):
        found = run.calibrate(0.3)
    assert found.threshold == pytest.approx(slow_threshold(run, 0.3), abs=1e-7)
    assert found == read_calibration(run.place)
    assert (found.far, found.classes, found.images, found.others) == (0.3, 6, 60, 60)
    assert found.false_acceptances == pytest.approx(7 / 60)
    assert found.expected == pytest.approx(6 / 5 * 1.7 / 7)
    assert found.interval[0] < found.false_acceptances < found.interval[1]


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", float("nan")), ("threshold", 99), ("far", 2), ("threshold", "far"), ("own", None)]
)
def test_a_kept_threshold_is_checked_when_read(name, value, run):
    run.calibrate()
    written = json.loads((run.place / FILE).read_text())
    (run.place / FILE).write_text(json.dumps(written | {name: value}))
    with pytest.raises(DataError, match=r"known-or-new.json: damaged .* delete it"):
        run.calibrate()


def test_answers_have_class_distance_and_image(run, photographs):
    files = sorted((photographs / "more").rglob("*.png"))
    answers = run.identify(files, k=2, far=0.3)
    points = run.indexed_images().embeddings.double()
    names = np.array(run.indexed_images().classes)
    centers = {name: torch.nn.functional.normalize(points[names == name].mean(0), dim=0) for name in set(names)}
    for file, answer in zip(files, answers, strict=True):
        point = run.embed(file)[0].double()
        distances = sorted((float((point - center).norm()), name) for name, center in centers.items())
        assert answer.classes == [name for _, name in distances[:2]]
        assert answer.distances == pytest.approx([distance for distance, _ in distances[:2]], abs=1e-6)
        assert answer.name == (distances[0][1] if distances[0][0] <= answer.threshold else None)
        of_class = np.flatnonzero(names == answer.classes[0])
        best = of_class[int((points[of_class] - point).norm(dim=1).argmin())]
        assert answer.paths[0] == run.indexed_images().paths[best]
    with warnings.catch_warnings(action="error"):
        again = run.identify(photographs / "more", k=2)
    assert {answer.query: answer.name for answer in again} == {answer.query: answer.name for answer in answers}


def test_an_indexed_photograph_is_compared_with_the_others(run, photographs):
    file = photographs / "enrolled" / "seal 0" / "003.png"
    (answer,) = run.identify(file, radius=2, nearest="image")
    assert answer.paths[0] != "seal 0/003.png"
    assert answer.distances[0] > 1e-3
    (copied,) = run.identify(shutil.copy(file, photographs.parent / "copy.png"), radius=2, nearest="image")
    assert copied.paths[0] == "seal 0/003.png"
    assert copied.distances[0] < 1e-3


def test_the_best_accuracy_is_better_than_other_thresholds(run):
    def gained(far):
        found = run.calibrate(far)
        return found.true_acceptances * found.own - found.false_acceptances * found.others

    with pytest.warns(RetrievalWarning, match="best accuracy"):
        best = gained("best-accuracy")
    assert best >= max(gained(far) for far in (0.2, 0.3, 0.5))


def test_a_stale_threshold_is_noticed_and_said(runs, photographs, tmp_path):
    images = shutil.copytree(photographs / "enrolled", tmp_path / "images")
    run = load_run(shutil.copytree(runs[0], tmp_path / "run"), "cpu")
    run.index(images)
    first = run.calibrate(0.3)
    write(images, 7, range(10), "stranger 7")
    run.index(images)
    with pytest.warns(RetrievalWarning, match="again: the enrolled images have changed: 70 now, 60"):
        second = run.calibrate()
    assert (second.far, second.classes) == (0.3, 7)
    assert second.gallery != first.gallery
    written = json.loads((run.place / FILE).read_text())
    (run.place / FILE).write_text(json.dumps(written | {"identity": "another"}))
    with pytest.warns(RetrievalWarning, match="again: the network has changed"):
        assert run.calibrate() == second


def test_other_individuals_in_place_of_enrolled_ones(run, photographs):
    with pytest.warns(RetrievalWarning, match=f"80 images of 4 classes of {photographs / 'more'}"):
        found = run.calibrate(0.25, on=photographs / "more")
    distances = [answer.distances[0] for answer in run.identify(photographs / "more") if "stranger" in answer.query]
    assert found.threshold == pytest.approx(sorted(distances)[5])  # (5 of 20 + 1) / 5 classes: the first above 25 %
    assert run.calibrate() == found  # it stays with these individuals
    assert measured(run)["values"]["threshold"] == found.threshold
    assert str(photographs) not in json.dumps(measured(run))
    with pytest.raises(DataError, match="all of its 6 classes are enrolled"):
        run.calibrate(on=photographs / "enrolled")


def test_what_cannot_be_calibrated_says_why(run, photographs):
    for far in (0, 1, -1, float("nan"), "best", 2):
        with pytest.raises(ConfigError, match="wanted a rate between 0 and 1, such as 0.01, or best-accuracy"):
            run.calibrate(far)
    with pytest.raises(ConfigError, match="--nearest row: wanted center or image"):
        run.calibrate(nearest="row")
    with pytest.raises(ConfigError, match="-k 0"):
        run.identify(photographs / "enrolled" / "seal 0" / "003.png", k=0)


def test_one_class_is_not_enough_to_calibrate(make, photographs, tmp_path):
    one = shutil.copytree(photographs / "enrolled" / "seal 0", tmp_path / "one" / "seal 0")
    photograph = photographs / "more" / "seal 0" / "012.png"
    with pytest.raises(DataError, match="none of 10 images of the index has a class"):
        make("flat", indexed=one).identify(photograph)
    run = make(indexed=one.parent)
    with pytest.raises(DataError, match="1 class enrolled: what is new is calibrated on two or more"):
        run.identify(photograph)
    (answer,) = run.identify(photograph, radius=2)
    assert answer.classes == ["seal 0"]


def measured(run):
    return json.loads((run.folder / "metrics.json").read_text())["measured"]["known_or_new"]


def test_each_collection_keeps_its_own_threshold(run, photographs, tmp_path):
    calibration = run.calibrate(0.3)
    values = measured(run)["values"]
    assert values["threshold"] == calibration.threshold
    assert values["false_acceptances_asked_for"] == 0.3
    assert values["false_acceptances_expected"] == calibration.expected
    run.export(tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "preprocess.json").read_text())["measured"]["known_or_new"] == values
    other = load_run(run.folder, "cpu", store=tmp_path / "store")
    other.index(photographs / "enrolled")
    assert other.calibrate(0.5).threshold > calibration.threshold
    assert measured(run)["values"] == values


def test_a_run_with_unwritable_metrics_keeps_its_threshold(runs, photographs, tmp_path):
    run = load_run(shutil.copytree(runs[0], tmp_path / "run", ignore=lambda *_: ["collection"]), "cpu")
    run.index(photographs / "enrolled")
    with (run.folder / "metrics.json").open("a") as file:
        file.write(" ")
    told = []
    threshold = Identifier(run.search_index, run.loaded, told.append).calibration(0.6).threshold
    assert "could not be added to metrics and report: " in told[-2] + told[-1]
    assert Identifier(run.search_index, run.loaded, told.append).calibration().threshold == threshold


@pytest.fixture(scope="module")
def identified(runs, photographs, tmp_path_factory):
    """A run, and copies of the enrolled and of the other individuals."""
    place = tmp_path_factory.mktemp("identify command")
    shutil.copytree(photographs / "enrolled", place / "enrolled")
    shutil.copytree(photographs / "more", place / "others", ignore=shutil.ignore_patterns("seal *"))
    return shutil.copytree(runs[0], place / "run", ignore=lambda *_: ["collection"]), place


def test_calibrating_identifying_scoring_and_enrolling(command, json_of, text_of, identified):
    run, place = identified
    command("index", run, place / "enrolled")
    calibrated = json_of("identify", run, "--far", "0.3")
    assert (calibrated["far"], calibrated["classes"], calibrated["nearest"]) == (0.3, 6, "center")
    assert "Threshold 0." in text_of("identify", run)

    photographs = sorted((place / "others").rglob("*.png"))[:3]
    done = command("identify", run, *photographs, place / "enrolled" / "seal 0", "-k", "2", "--json")
    answers = json.loads(done.stdout)
    assert "Threshold" not in done.stderr  # it is kept
    assert len(answers) == 3 + 10
    for answer in answers:
        assert list(answer) == ["query", "known", "name", "classes", "distances", "paths", "threshold"]
        assert len(answer["classes"]) == len(answer["paths"]) == 2
        assert answer["known"] == (answer["distances"][0] <= calibrated["threshold"]) == (answer["name"] is not None)
    text = text_of("identify", run, *photographs, "--radius", "2")
    assert "3 known, 0 new: a known one is within 2 of a class" in text

    scored = json_of("identify", run, place / "others", "--score")
    assert (scored["known"], scored["new"]) == (0, 80)
    assert scored["metrics"].keys() == {"accuracy", "false_acceptance_rate", "balanced_accuracy_new"}
    assert "New ones that are taken for known" in text_of("identify", run, place / "others", "--score")

    enroll = ("enroll", run, place / "others" / "stranger 7", "--as", "Séal 7")
    enrolled = command(*enroll)
    assert "Séal 7 enrolled" in enrolled.stdout
    assert "the threshold of known or new is out of date; type: pml-ext identify" in enrolled.stderr
    assert "to undo: rm -- " in enrolled.stdout
    again = json_of(*enroll)
    assert (again["copied"], again["changes"]["new"]) == ([], 0)
    after = command("identify", run, photographs[0], "--json")
    assert "known or new is calibrated again: the enrolled images have changed" in after.stderr


def test_changes_of_classes_print_how_to_undo_them(command, json_of, refused, identified):
    run, place = identified
    command("index", run, place / "others")
    photographs = sorted((place / "others" / "stranger 7").glob("*.png"))
    changed = command("enroll", run, "--join", "stranger 7", "stranger 8")
    assert "20 photographs of stranger 7 moved to" in changed.stdout
    undo = shlex.split(changed.stdout.strip().rpartition("to undo: pml-ext ")[2])
    assert undo == ["enroll", str(run), "--undo", "1"]
    undone = json_of(*undo)
    assert (undone["old"], undone["new"], undone["photographs"]) == ("stranger 8", "stranger 7", 20)
    assert sorted((place / "others" / "stranger 7").glob("*.png")) == photographs
    for arguments, text in (
        ([], "no class is named; type: pml-ext enroll"),
        (["--remove", "stranger 7", "--as", "stranger 7"], "--undo and PHOTO --as NAME exclude each other"),
        (["--rename", "stranger 7", "stranger 8"], "exists; to join the two, type: pml-ext enroll"),
    ):
        assert text in refused("enroll", run, *arguments)

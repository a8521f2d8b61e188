"""The results of runs, as tables."""

import pytest

from pml_ext_train.cli.results import print_results
from pml_ext_train.results.verdict import shown_phases

PHASES = ("raw", "frozen", "pca", "before", "head", "blocks", "after", "features", "training", "learned_metric")
NAMES = ("recall_at_1", "r_precision", "map_at_r", "nmi_majority", "f1")


def result(recipe="fit/photographs-pretrained/then-all", phases=PHASES, **more):
    metrics = {phase: dict.fromkeys(NAMES, 1 - place / 64) for place, phase in enumerate(phases)}
    return {"recipe": recipe, "seed": 0, "folder": "run", "seconds": {"train": 1.0}, **metrics, **more}


@pytest.mark.parametrize("runs", [1, 3])
def test_a_table_fits_into_80_columns(monkeypatch, capsys, runs):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 80)
    print_results([result() for _ in range(runs)], None, as_json=False, quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    values = " ".join(lines).split()
    for place in range(len(PHASES)):  # whole numbers, each in every metric
        assert values.count(f"{100 - 100 * place / 64:.1f}") >= len(NAMES)
    words = {word for line in lines for word in line.split()}
    assert {"untrained", "embeddings", "shortlist"} & words == {"untrained"}
    assert {"features", "network,", "images", "Recall@1"} <= words


def test_a_run_without_training_has_no_equal_columns(capsys):
    same = {"before": {"recall_at_1": 0.5}, "frozen": {"recall_at_1": 0.5}, "after": {"recall_at_1": 0.5}}
    about = result("r", (), raw={"recall_at_1": 0.25}, training={"recall_at_1": 0.75}, epochs=0, **same)
    print_results([about], None, as_json=False, quick=True)
    title, heads, _, row = capsys.readouterr().out.splitlines()[:4]
    assert title == "r, %"
    assert [head.strip() for head in heads.split("   ") if head.strip()] == [
        "raw pixels",
        "frozen trunk",
        "features of training images",
    ]
    assert row.split() == ["Recall@1", "25.0", "50.0", "75.0"]


@pytest.mark.parametrize(
    ("about", "titles"),
    [
        ({"raw": 1.0, "frozen": 1.0, "after": 1.0}, ["raw pixels", "frozen trunk"]),  # pixels are no features
        ({"raw": 1.0, "after": 1.0, "training": 1.0, "input": "vectors"}, ["raw vectors"]),
        ({"after": 0.5, "training": 1.0}, ["features, nothing trained", "features of training images"]),
    ],
)
def test_columns_of_what_is_taken_as_it_is(about, titles):
    metrics = {"epochs": 0}
    for phase, value in about.items():
        metrics[phase] = value if phase == "input" else {"recall_at_1": value}
    assert list(shown_phases(metrics).values()) == titles


def test_a_report_path_stays_on_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    folder = tmp_path / "a folder with a name of several words"
    folder.mkdir()
    (folder / "report.html").touch()
    metrics = {"recipe": "cbml/digits", "after": {"recall_at_1": 0.5}, "folder": str(folder)}
    print_results([metrics], None, as_json=False, quick=True)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"

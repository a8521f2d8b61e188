"""What is printed about finished runs."""

from pml_ext.cli.results import print_runs


def test_the_path_of_a_report_stays_on_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pml_ext.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    folder = tmp_path / "a folder with a name of several words"
    folder.mkdir()
    (folder / "report.html").touch()
    metrics = {"recipe": "cbml/digits", "after": {"recall_at_1": 0.5}, "folder": str(folder)}
    print_runs([metrics], None, as_json=False, quick=True)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"

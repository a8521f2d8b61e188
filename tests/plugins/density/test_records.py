"""The table of densities by epoch."""

from pml_ext_density.records import plotted, read_rows, write_epoch


def epochs(path):
    return [row["epoch"] for row in read_rows(path)]


def test_epochs_after_a_resumed_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "records" / "density.csv"
    assert read_rows(path) == []
    for epoch in range(4):
        write_epoch(path, epoch, [5, 8], [0.5, 0.25], [float("nan"), 0.1])
    assert epochs(path) == ["0", "0", "1", "1", "2", "2", "3", "3"]
    write_epoch(path, 2, [5, 8], [0.4, 0.2], [0.3, 0.1])  # of a run that was resumed after its first epoch
    assert epochs(path) == ["0", "0", "1", "1", "2", "2"]
    assert read_rows(path)[-2:] == [
        {"epoch": "2", "label": "5", "target": "0.4", "density": "0.3"},
        {"epoch": "2", "label": "8", "target": "0.2", "density": "0.1"},
    ]
    assert read_rows(path)[0]["density"] == "nan"
    assert [len(axes.lines) for axes in plotted(read_rows(path)).axes] == [3, 3]  # two classes and their mean

"""Tables of a comparison, on results written by hand."""

from pml_ext_compare.tables import differences_table, latex_table, markdown_table, remarks, rows_table, tuning_table
from pml_ext_train.report import ReportTable

ESTIMATE = {"mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "values": [0.4, 0.6]}
PRINTED = {"value": 0.7, "text": "70.0", "row": "CBML", "data": "CUB", "same_data": False}
ROW = {"recipe": "a_b", "seeds": [0, 1], "trials": 0, "seconds": 1.25, "selection": "last epoch"}
FAILED = {"recipe": "c", "seeds": [], "trials": 0, "seconds": None, "selection": "last epoch"}
NOTHING = dict.fromkeys(ESTIMATE) | {"values": []}
FAILURE = {"c, seed 0": "no memory"}
RESULT = {
    "metrics": ["nmi"],
    "differences_from": "a_b",
    "recipes": [
        ROW | {"unequal_settings": [], "errors": {}, "nmi": ESTIMATE | {"paper": [PRINTED, PRINTED]}},
        FAILED | {"unequal_settings": ["batch: 2"], "errors": FAILURE, "nmi": NOTHING | {"paper": []}},
    ],
}


def difference(**values):
    keys = ("p", "p_holm", "p_permutation", "better", "better_low", "better_high", "wanted")
    found = {"recipe": "c", "nmi": {**ESTIMATE, "pairs": 5, **dict.fromkeys(keys), **values}}
    return differences_table(RESULT | {"differences": [found]}).rows[0]


def test_rows_have_intervals_and_printed_values():
    table = rows_table(RESULT)
    assert table.columns == ["recipe", "seeds", "NMI", "NMI in the paper", "trials", "seconds", "selection"]
    assert table.rows[0] == ["a_b", "2", "50.0 [40.0, 60.0]", "70.0", "0", "1.2", "last epoch"]
    assert table.rows[1] == ["c *", "0", "", "", "0", "", "last epoch"]
    assert table.caption.endswith("The papers' values are of their own data and networks.")


def test_differences_have_their_tests_and_intervals():
    tested = difference(p=0.0123, p_holm=0.0246, p_permutation=0.0625, better=0.9, better_low=0.5, better_high=1.0)
    assert tested == [
        "c",
        "NMI",
        "5",
        "+50.0 [+40.0, +60.0]",
        "0.0123",
        "0.0246",
        "0.0625",
        "0.90 [0.50, 1.00]",
        "> 1000",
    ]
    assert difference(p=0.2, wanted=12)[-1] == "12"
    assert difference()[4:] == ["", "", "", "", ""]


def test_trials_have_ranges_and_importance():
    about = {
        "recipe": "a",
        "sampler": "TPE",
        "pruner": "median",
        "metric": "nmi",
        "chosen on": "held-out training classes",
        "ranges": {"lr": {"low": 0.1, "high": 1, "log": True}, "m": {"choices": [2, 4]}, "b": {"low": 0, "high": 1}},
        "importance": {},
        "best": {"lr": 0.25, "m": 2},
        "trials": [{"number": 0, "state": "pruned", "value": None, "seconds": 1.5, "values": {"lr": 0.123456}}],
    }
    table = tuning_table(about)
    assert table.rows == [["0", "pruned", "", "1.5", "0.1235", "", ""]]
    assert table.caption == (
        "Best: lr 0.25, m 2. Ranges: lr low 0.1, high 1, log True; m choices [2, 4]; b low 0, high 1. "
        "TPE sampler, median pruner, by NMI of held-out training classes."
    )


def test_remarks_are_of_settings_and_failed_runs():
    assert remarks(RESULT) == ["* c: batch: 2", "c, seed 0 failed: no memory"]


def test_values_are_counted_and_not_runs():
    (row, failed) = RESULT["recipes"]
    fewer = row | {"seeds": [0, 1, 2]}  # one of them has no value: NaN, or a fold that failed
    result = RESULT | {"recipes": [fewer, failed]}
    assert rows_table(result).rows[0][:2] == ["a_b", "2"]
    assert "a_b: 2 of 3 seeds have a value of NMI" in remarks(result)


def test_a_bar_in_a_name_divides_no_cell():
    table = ReportTable("", ["recipe", "nmi"], [["a|b", "1"]], "")
    assert markdown_table(table)[-1] == r"| a\|b | 1 |"


def test_a_table_in_markdown_and_latex():
    table = rows_table(RESULT)
    assert markdown_table(table)[:2] == [
        "| recipe | seeds | NMI | NMI in the paper | trials | seconds | selection |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines = latex_table(table).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert lines[4].startswith(r"a\_b & 2 & 50.0 [40.0, 60.0] & 70.0")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_latex_has_any_name_escaped():
    table = ReportTable("", ["recipe"], [[r"C:\a_b~1^2"]], "")
    assert latex_table(table).splitlines()[4] == r"C:\textbackslash{}a\_b\textasciitilde{}1\textasciicircum{}2 \\"

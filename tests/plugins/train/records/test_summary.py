"""Mean and spread of several runs."""

from pml_ext_train.records.summary import summarize


def test_the_summary_of_one_run_has_no_spread():
    results = [{"recipe": name, "after": {"recall_at_1": 0.5}} for name in ("a@1", "a@2")]
    assert summarize(results)["a@1"]["after"]["recall_at_1"] == {"mean": 0.5, "std": None}


def test_a_failed_metric_is_not_summarized():
    results = [
        {"recipe": "a", "after": {"recall_at_1": 0.5, "theirs": 1.0}},
        {"recipe": "a", "after": {"recall_at_1": 0.7}},
    ]
    assert summarize(results)["a"]["after"].keys() == {"recall_at_1"}

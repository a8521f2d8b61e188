"""What a run has recorded, read back."""

from pml_ext_train.records import CURVE, VALIDATION, Records, loss_series, metric_by_epoch


def test_stages_share_a_curve_and_parts_do_not(tmp_path):
    records = Records(tmp_path, 0, 0)
    for iteration in (1, 2):
        records.add(iteration, {"loss_histories": {"total_loss": 1.0}, "metric_loss_A": {"positive_loss": 1.0}})
    for iteration in (3, 4):
        terms = {"metric_loss_B": {"positive_loss": 2.0}, "metric_loss_B__modules_inner_C": {"positive_loss": 3.0}}
        records.add(iteration, {"loss_histories": {"total_loss": 1.0}, **terms})
    records.close()
    assert loss_series(tmp_path, ["positive_loss", "positive_loss"]) == {
        "loss": ([1, 2, 3, 4], [1.0] * 4),
        "positive": ([1, 2, 3, 4], [1.0, 1.0, 2.0, 2.0]),
        "positive (C)": ([3, 4], [3.0, 3.0]),
    }


def test_a_metric_by_epoch_of_validation_and_test(tmp_path):
    assert metric_by_epoch(tmp_path, "nmi") == {}
    records = Records(tmp_path, 0, 0)
    for epoch in (1, 2):
        records.add(epoch, {CURVE: {"nmi": epoch / 4}, VALIDATION: {"nmi": 1 + epoch / 4}})
    records.close()
    both = {"validation": ([1, 2], [1.25, 1.5]), "test": ([1, 2], [0.25, 0.5])}
    assert metric_by_epoch(tmp_path, "nmi") == both
    assert metric_by_epoch(tmp_path, "map_at_r") == {}

"""The report's page in a browser, at the width of a telephone and of a screen."""

import html
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from pml_ext_train.recipe.schema import EvaluationTable
from pml_ext_train.report import render
from pml_ext_train.results.run_report import _cells, metrics_table
from pml_ext_train.results.verdict import PHASES

METRICS = [*(f"recall_at_{k}" for k in (1, 10, 100)), "precision_at_1", "r_precision", "map_at_r", "nmi", "ncm_top_1"]
MEASURE = """<script>const frame = document.querySelector("iframe"); frame.onload = () => {
document.title = [...frame.contentDocument.querySelectorAll(".scroll")].map(e => e.scrollWidth - e.clientWidth)
}</script>"""


def page(phases):
    recipe = SimpleNamespace(evaluation=EvaluationTable(recall_at=[1, 10, 100]))
    data = SimpleNamespace(noun="images", has_vectors=False, listed=None, tested_training="train")
    view = SimpleNamespace(queries="test", data=data, recipe=recipe, frozen=False, relation=None)
    metrics = {phase: dict.fromkeys(METRICS, number / 10) for number, phase in enumerate(phases)}
    table = metrics_table(view, metrics)
    return render("report", title="a", tables=[table], phases={"train": 1.0})


def test_the_smallest_error_rate_is_the_best_value():
    metrics = {
        "before": {"verification_eer": 0.3, "verification_roc_auc": 0.6},
        "after": {"verification_eer": 0.1, "verification_roc_auc": 0.9},
        "training": {"verification_eer": 0.0, "verification_roc_auc": 1.0},
    }
    phases = ["before", "after", "training"]
    assert _cells(metrics, "verification_eer", phases) == ["30.0", "<b>10.0</b>", "0.0"]
    assert _cells(metrics, "verification_roc_auc", phases) == ["60.0", "<b>90.0</b>", "100.0"]


@pytest.mark.parametrize(("width", "phases"), [(390, ["raw", "before", "after", "training"]), (1280, [*PHASES])])
def test_no_number_in_a_table_is_cut(tmp_path, width, phases):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser")
    text = f'<iframe width="{width}" height="900" srcdoc="{html.escape(page(phases))}"></iframe>{MEASURE}'
    (tmp_path / "page.html").write_text(text)
    options = "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000"
    call = [browser, *options, "--dump-dom", f"file://{tmp_path}/page.html"]
    shown = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>0</title>" in shown

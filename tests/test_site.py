"""The documentation as a site: no warning of a link or an anchor, and a search finds a loss by its paper's name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAPERS = {
    "Contrastive Bayesian Analysis for Deep Metric Learning": "CBMLLoss",
    "Deep Metric Learning with Angular Loss": "AngularLoss",
    "Deep Metric Learning with Density Adaptivity": "DensityRegularizer",
    "Local Similarity-Aware Deep Feature Embedding": "PDDMLoss",
    "Clustering and Querying Images from Unknown Classes Using Metric Learning": "BatchAllTripletLoss",
    "Cross-Batch Memory for Embedding Learning": "CrossBatchMemory",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


def test_search_finds_a_loss_by_its_paper(site):
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    for title, name in PAPERS.items():
        found = {entry["location"] for entry in entries if title in f"{entry['title']} {entry['text']}"}
        assert any(place.endswith(f".{name}") for place in found), f"{title}: {found}"


def test_stable_list_is_on_its_page(site):
    assert "pml_ext.TotalWhitening(shrinkage=0.6, size=None)" in (site / "stable" / "index.html").read_text("utf-8")

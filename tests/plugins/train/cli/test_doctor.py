"""What ``pml-ext doctor`` finds and prints: extras, folders, and a self test."""

import importlib.metadata
import json

import pytest

import pml_ext.losses
from pml_ext_train.cli import installation


def test_doctor_prints_a_diagnosis_to_paste(pml_ext_command):
    done = pml_ext_command("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    wanted = ("torch", "processors", "photos", "cbml", "a loss against PML's own", "everything works")
    assert [text for text in wanted if text not in done.stdout] == []
    about = json.loads(pml_ext_command("doctor", "--json").stdout)
    assert set(about) == {"versions", "devices", "threads", "missing", "folders", "checks", "plugins"}
    assert all(check["ok"] for check in about["checks"])
    assert {"name": "cbml", "version": "0.1.0", "status": "ok", "error": ""} in about["plugins"]


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize("fault", ["plugin", "folder"])
def test_what_does_not_work_is_an_exit_code(pml_ext_command, install_plugin, monkeypatch, fault):
    if fault == "plugin":
        install_plugin("broken", "raise RuntimeError('a wrong import')")
    else:
        monkeypatch.setenv("PML_EXT_DATA", "/proc/nowhere")
    done = pml_ext_command("doctor")
    assert done.returncode == 1
    assert "everything works" not in done.stdout
    assert {"plugin": "a wrong import", "folder": "/proc/nowhere"}[fault] in done.stdout


def test_every_extra_has_a_description():
    assert set(installation.EXTRAS) == set(importlib.metadata.metadata("pml-ext").get_all("Provides-Extra"))


def test_missing_packages_are_named_by_their_extra(monkeypatch):
    known = installation._version
    monkeypatch.setattr(installation, "_version", lambda name: "" if name in ("timm", "scipy") else known(name))
    missing = installation.missing_by_extra()
    assert [text.startswith("timm>=") for text in missing["timm"]] == [True]
    assert "scipy>=1.11" in missing["train"]
    assert "scipy>=1.11" in missing["compare"]  # has all of train
    assert any(text.startswith("timm") for text in missing["photos"])
    assert not any(text.startswith("pytest>=") for text in missing["dev"])


@pytest.mark.parametrize("present", [True, False])
def test_an_accelerator_is_tested_where_there_is_one(present, monkeypatch):
    monkeypatch.setattr(installation.torch.cuda, "is_available", lambda: present)
    monkeypatch.setattr(installation, "_test_accelerator", lambda: "a product on cuda:0 differs from that on the CPU")
    found = installation.diagnose()
    names = [check.name for check in found.checks if not check.ok]
    assert names == ["a product on the accelerator"] * present
    assert len(found.checks) == 3 + present


@pytest.mark.parametrize(("margin", "text"), [(0.2, "PML's TripletMarginLoss"), (-1, "margin")])
def test_wrong_values_or_errors_are_a_finding(monkeypatch, margin, text):
    right = pml_ext.losses.TiledTripletMarginLoss

    def wrong():
        if margin < 0:
            raise ValueError("no margin")
        return right(margin=margin)

    monkeypatch.setattr(pml_ext.losses, "TiledTripletMarginLoss", wrong)
    check = next(check for check in installation.diagnose().checks if "loss" in check.name)
    assert not check.ok
    assert text in check.text

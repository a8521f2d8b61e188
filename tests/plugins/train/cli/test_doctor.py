"""``pml-ext doctor``."""

import json

import pytest


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

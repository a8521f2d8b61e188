"""The commands list, show and data."""

import json


def test_list_and_show_and_plugins(pml_ext_command, tmp_path):
    listed = json.loads(pml_ext_command("list", "--json").stdout)
    assert {"cbml", "regularized", "pml/contrastive"} <= {entry["name"] for entry in listed["losses"]}
    assert {"cbml/digits", "pml/multi-similarity/omniglot-small"} <= {entry["name"] for entry in listed["recipes"]}
    names = {e["name"] for e in listed["datasets"]}
    assert {"digits", "digits-unseen", "omniglot-small", "cub", "inshop", "folder:PATH", "table:FILE.csv"} <= names
    assert {"RandomErasing", "ColorJitter", "RandomApply"} <= {entry["name"] for entry in listed["transforms"]}
    assert "RandomErasing" in pml_ext_command("list", "transforms").stdout
    assert "value" in pml_ext_command("show", "RandomErasing").stdout
    assert {"convnet", "mlp", "torchvision/resnet50"} <= {entry["name"] for entry in listed["trunks"]}
    table = pml_ext_command("list", "miners").stdout
    assert any(line.startswith("hard-pair") and "HardPairMiner" in line for line in table.splitlines())
    shown = pml_ext_command("show", "cbml").stdout
    for wanted in ("(27)", "alpha_pos", "0.01", "Kan", "cbml/digits", "metric variance"):
        assert wanted.lower() in shown.lower(), wanted
    assert json.loads(pml_ext_command("show", "pml/angular", "--json").stdout)[1]["kind"] == "miner"
    assert "schedule.epochs" in pml_ext_command("show", "cbml/digits").stdout
    (tmp_path / "mine.toml").write_text('extends = "cbml/digits"\ndescription = "my own"')
    assert "my own" in pml_ext_command("show", str(tmp_path / "mine.toml")).stdout
    found = pml_ext_command("plugins")
    assert found.returncode == 0
    assert any(line.split()[:2] == ["cbml", "pml-ext"] and "ok" in line.split() for line in found.stdout.splitlines())

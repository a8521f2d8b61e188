"""The commands list, show and data."""

import json


def test_list_and_show_describe_all_kinds(pml_ext_command, tmp_path):
    listed = json.loads(pml_ext_command("list", "--json").stdout)
    wanted = {
        "losses": {"cbml", "regularized", "pml/contrastive"},
        "recipes": {"cbml/digits", "pml/multi-similarity/omniglot-small"},
        "datasets": {"digits", "omniglot-small", "cub", "inshop", "folder:PATH", "table:FILE.csv"},
        "transforms": {"RandomErasing", "ColorJitter", "RandomApply"},
        "trunks": {"convnet", "mlp", "torchvision/resnet50"},
    }
    for kind, names in wanted.items():
        assert names <= {entry["name"] for entry in listed[kind]}
    table = pml_ext_command("list", "miners").stdout
    assert any(line.startswith("hard-pair") and "HardPairMiner" in line for line in table.splitlines())
    shown = pml_ext_command("show", "cbml").stdout
    assert all(wanted in shown for wanted in ("(27)", "alpha_pos", "0.01", "Kan", "cbml/digits"))
    assert json.loads(pml_ext_command("show", "pml/angular", "--json").stdout)[1]["kind"] == "miner"
    (tmp_path / "mine.toml").write_text('extends = "cbml/digits"\ndescription = "my own"')
    shown = pml_ext_command("show", str(tmp_path / "mine.toml")).stdout
    assert all(wanted in shown for wanted in ("my own", "schedule.epochs"))

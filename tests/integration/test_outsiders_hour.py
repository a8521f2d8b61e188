"""From an empty folder to a loss with a miner that passes, word by word as the page for authors has it."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.packaging


SHORTER = {
    "pml-ext train": " --set schedule.epochs=2 --set schedule.milestones=[1] --set sampler.iterations=3",
    "pml-ext bench": " --shapes 64x16x4 --repeats 2",
    "pytest my-loss": " -q -p no:cacheprovider -k 'not two_processes and not compile and not fullgraph'",
}


@pytest.mark.timeout(3600)
def test_an_outsiders_hour(environment, tmp_path, monkeypatch):
    """The page's commands and files, word by word and in its order; only the training and the timing are cut short."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    hour = page.partition("## A loss and a miner in ten commands\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:`(my-loss/[^`]*)`:\n\n)?```(bash|python|toml)\n(.*?)```", hour, re.S)
    commands = [line for _, language, text in blocks if language == "bash" for line in text.strip().splitlines()]
    assert len(commands) == 10
    monkeypatch.setitem(environment.variables, "PML_EXT", str(ROOT))
    for path, language, text in blocks:
        if language != "bash":
            assert (tmp_path / path).parent.is_dir(), path
            (tmp_path / path).write_text(text)
            continue
        for command in text.strip().splitlines():
            command += SHORTER.get(" ".join(command.split()[:2]), "")
            output = environment.run(command, tmp_path)
            if command.startswith("pml-ext check"):
                assert "0 failed" in output
                assert "my-miner" in output
            if command.startswith("pml-ext plugins"):
                assert "my-loss: my-loss 0.1.0, module my_loss, ok" in output
                assert "components  2" in output
    assert (tmp_path / "run" / "report.html").exists()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["plugins"] == {
        "my-loss": {"distribution": "my-loss", "version": "0.1.0"}
    }
    assert "my-loss" not in environment.run("pml-ext plugins", tmp_path)
    gone = environment.run("pml-ext report run", tmp_path, fails=True)
    assert "the plugin 'my-loss' of my-loss 0.1.0 is not installed; type: pip install my-loss==0.1.0" in gone

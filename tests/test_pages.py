"""Pages for users: their Python runs, and the files and tests that they name exist."""

import re
import shlex
from pathlib import Path

import pytest

from pml_ext.training.launch import train

from .overrides import typed

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", ["evaluate", "index", "own-loop", "scale"])
def test_the_python_of_a_page_runs(name):
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    lines: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), lines)


def test_the_lines_of_the_page_on_vectors_run(pml_ext_command, tmp_path, monkeypatch, without_report):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "vectors.md").read_text("utf-8")
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    lines: dict[str, object] = {"__name__": "page"}
    commands = []
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "vectors.md", "exec"), lines)
            continue
        for line in block.splitlines():
            _, command, *given = shlex.split(line)
            if command in ("fit", "train"):
                given += ["--quick", "--set", "schedule.epochs=2", "--device", "cpu"]
                given += [] if "cbml/digits" not in given else ["--set", "schedule.milestones=[1]"]
            done = pml_ext_command(command, *given)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            commands.append(command)
    assert commands == ["fit", "train", "index", "query", "query", "query", "export"]
    assert lines["answer"].paths  # type: ignore[attr-defined]
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1797


def test_the_lines_of_the_page_on_pairs_run(pml_ext_command, tmp_path, monkeypatch, without_report):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "pairs.md").read_text("utf-8")
    lines: dict[str, object] = {"__name__": "page"}
    commands = []
    for language, block in re.findall(r"```(python|bash|toml)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            exec(compile(block, "pairs.md", "exec"), lines)
        name = re.match(r"# (\w+\.toml)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
        if language != "bash":
            continue
        for line in block.splitlines():
            _, command, *given = shlex.split(line)
            if command == "train":
                given += ["--quick", "--set", "schedule.epochs=2", "--device", "cpu"]
            done = pml_ext_command(command, *given)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            commands.append(command)
    assert commands == ["train", "train", "train", "index", "query"]
    assert len(lines["batches"]) == 93  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "heading"), [("data", "Augmentation"), ("data", "Views of an image"), ("recipes", "Warm-up")]
)
def test_the_recipe_of_a_section_trains(name, heading, tmp_path, without_report):
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    if "extends" not in block:
        block = f'extends = "cbml/digits"\n{block}'
    file = tmp_path / "mine.toml"
    file.write_text(block)
    few = ["schedule.epochs=2", "sampler.iterations=3", "model.trunk.width=8"]
    few += ["evaluation.baselines=false", "evaluation.training_images=0"]
    (metrics,) = train(str(file), overrides=typed(few), out=tmp_path / "run", device="cpu")
    assert metrics["after"]["recall_at_1"] > 0.5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_scripts_and_tests_of_a_page_exist(page):
    text = page.read_text("utf-8")
    for path, name in re.findall(r"`((?:benchmarks|examples|tests)/[\w/.]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).is_file(), path
        assert f"def {name}(" in (ROOT / path).read_text("utf-8") or not name, f"{path}::{name}"
    for module in re.findall(r"python -m (benchmarks[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module

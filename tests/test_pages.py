"""Pages for users: their Python runs, and the files and tests that they name exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import typer
from pytorch_metric_learning import losses

from pml_ext import registry
from pml_ext_train.cli.app import app_for
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipe
from pml_ext_train.recipe.read import variant_tables

from .overrides import typed
from .pages import blocks_of, not_printed, run_page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
CLAIMS = sorted(file for file in (ROOT / "benchmarks" / "claims").rglob("*.toml") if file.stem != "common")


READMES = [ROOT / "README.md", *sorted((ROOT / "plugins").glob("*/README.md"))]
ALONE = ["evaluate", "index", "own-loop", "recipes", "relations", "scale"]
# Pages whose lines run in a test below, in test_chapters.py or in integration/test_pages.py, and blocks that need
# what a test does not have.
FILES = {"pairs.md", "vectors.md"}
PHOTOGRAPHS = {"copies.md", "individuals.md", "photographs.md", "search.md"}
RUN_ELSEWHERE = FILES | PHOTOGRAPHS | {"plugins.md", "checks.md", "components.md"}
NOT_RUN = {
    "browse.md": "serves until it is ended; tests/plugins/browse starts it",
    "beyond-one-machine.md": "several machines and a database; tests/plugins/parts and stores run such lines",
    "compare.md": "hours of training; test_training_pages.py runs the first command",
    "faults.md": "an interruption by hand; tests/faults kills and resumes runs",
    "data.md": "downloads",
    "measurements.md": "benchmarks",
    "index.md": "the commands of the README",
    "plugins.md": "installs a package; tests/integration/test_packages.py does",
    "pretrained.md": "weights of a hub, hours",
    "recipes.md": "accounts of trackers; test_training_pages.py runs the first commands",
    "scale.md": "tests/integration/test_pages.py",
    "which-loss.md": "the photographs of a user; tests/plugins/compare runs such lines",
    "README.md": ".ci/run runs the first two to the letter",
}


@pytest.mark.parametrize("name", ALONE)
def test_the_python_of_a_page_runs(name, capsys):
    blocks = blocks_of(ROOT / "docs" / f"{name}.md", "python|bash|text")
    lines: dict[str, object] = {"__name__": "page"}
    before = ""
    for language, block in blocks:
        if language == "python":
            exec(compile(block, f"{name}.md", "exec"), lines)
        if language == "text" and before == "python":
            assert not not_printed(block, capsys.readouterr().out)
        before = language
    assert "python" in dict(blocks)


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_python_of_a_readme_runs_in_loops(page):
    labels = torch.arange(32) // 4 + 1
    embeddings = torch.eye(9, 64)[labels] + 0.05 * torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    lines = {"__name__": "page", "torch": torch, "labels": labels, "embeddings": embeddings.requires_grad_()}
    lines |= {"MultiSimilarityLoss": losses.MultiSimilarityLoss, "TripletMarginLoss": losses.TripletMarginLoss}
    lines |= {"queries": embeddings[:4], "gallery": embeddings}
    blocks = blocks_of(page, "python")
    for _, block in blocks:
        exec(compile(block, page.name, "exec"), lines)
    assert blocks or page.parent.name in ("pml_ext_compare", "pml_ext_search")


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_run_or_excused(page):
    runs = page.stem in ALONE or page.name in RUN_ELSEWHERE or page in READMES
    assert runs or page.name in NOT_RUN or not blocks_of(page, "python")
    assert page.name in FILES | PHOTOGRAPHS | set(NOT_RUN) or not blocks_of(page, "bash")


def commands_of(page):
    """The calls of ``pml-ext`` in a page's blocks, as lists of words without comments."""
    for _, block in blocks_of(page, "bash|makefile"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|(?=\s)|;", line):
                words = shlex.split(part, comments=True)
                if "pml-ext" in words:
                    yield words[words.index("pml-ext") + 1 :]


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_and_options_of_a_page_exist(page):
    for name, *given in commands_of(page):
        if name.startswith("-"):
            continue
        assert name in registry.commands(), name
        command = typer.main.get_command(app_for([name])).commands[name]
        options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        typed_options = {word.partition("=")[0] for word in given if word.startswith("-") and len(word) > 1}
        assert typed_options <= options | {"--help"}, f"{name}: {typed_options - options}"


def shorter(line):
    """Options with which a command of a page on files takes seconds."""
    if not re.match("pml-ext (fit|train) ", line):
        return ()
    more = ["--device", "cpu"]
    if "pairs.toml" not in line:
        more.append("--quick")
    if "--no-labels" not in line:
        more += ["--set", "schedule.epochs=2"]
    if "cbml/digits" in line:
        more += ["--set", "schedule.milestones=[1]"]
    return more


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vectors", "fit train index query query query fit query embed export"),
        ("pairs", "train train train index query"),
    ],
)
def test_the_lines_of_a_page_on_files_run(name, wanted, pml_ext_command, tmp_path, monkeypatch, without_report):
    monkeypatch.chdir(tmp_path)
    lines, names = run_page(name, pml_ext_command, shorter)
    assert [line.split()[1] for line in lines] == wanted.split()
    if name == "vectors":
        assert names["answer"].paths
        assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1797
    else:
        assert len(names["batches"]) == 93


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


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.stem)
def test_the_recipes_behind_the_measurements_are_valid(file):
    pytest.importorskip("timm")
    for name in variant_tables(str(file)):
        assert load_recipe(name).description


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_scripts_and_tests_of_a_page_exist(page):
    text = page.read_text("utf-8")
    for path, name in re.findall(r"`((?:benchmarks|examples|tests)/[\w/.]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).is_file(), path
        assert f"def {name}(" in (ROOT / path).read_text("utf-8") or not name, f"{path}::{name}"
    for module in re.findall(r"python -m (benchmarks[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module

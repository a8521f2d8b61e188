"""Pages for users and plugin authors: their lines run, and what they name exists."""

import functools
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
import torch
import typer
from pytorch_metric_learning import losses

import pml_ext.testing
from pml_ext import registry
from pml_ext.testing import check_component
from pml_ext.testing.checks import CHECKS
from pml_ext_train.cli.app import app_for
from pml_ext_train.cli.scaffold import new_plugin
from pml_ext_train.cli.targets import CONTRACTS, checks_of_tools
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
# Pages whose lines run in a test below or in integration/test_pages.py, and blocks that need
# what a test does not have.
FILES = {"pairs.md", "vectors.md"}
PHOTOGRAPHS = {"copies.md", "individuals.md", "photographs.md", "search.md"}
RUN_ELSEWHERE = FILES | PHOTOGRAPHS | {"plugins.md", "checks.md", "components.md"}
NOT_RUN = {
    "browse.md": "serves until it is ended; tests/plugins/browse starts it",
    "beyond-one-machine.md": "several machines and a database; tests/plugins/parts and stores run such lines",
    "compare.md": "hours of training; integration/test_pages.py runs the first command",
    "faults.md": "an interruption by hand; tests/faults kills and resumes runs",
    "data.md": "downloads",
    "measurements.md": "benchmarks",
    "index.md": "the commands of the README",
    "plugins.md": "installs a package; tests/integration/test_packages.py does",
    "pretrained.md": "weights of a hub, hours",
    "recipes.md": "accounts of trackers; integration/test_pages.py runs the first commands",
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


DOCS = ROOT / "docs"
CHAPTERS = sorted((DOCS / "plugins").glob("*.md"))


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names of a chapter's lines: the scaffold's loss, the first page's miner, and the kit without slow checks."""
    monkeypatch.setattr(pml_ext.testing, "check_component", functools.partial(check_component, fast=True))
    new_plugin("my-loss", tmp_path / "new")
    module = types.ModuleType("chapter")  # by whose name its classes are pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = vars(module)
    exec((tmp_path / "new" / "src" / "my_loss" / "losses.py").read_text(), found)
    exec(next(block for block in blocks(DOCS / "plugins.md") if "class MyMiner" in block), found)
    return found


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_the_lines_of_a_chapter_run(page, names):
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


def test_loop_on_the_checks_page_is_tested(names):
    block = next(block for block in blocks(DOCS / "plugins" / "checks.md") if "def loop(" in block)
    exec("from pml_ext.testing import parametrize_with_checks", names)
    exec(block, names)
    check_component(names["MyLoss"], reference=names["loop"], checks=["check_reference", "check_settings"])


def test_registry_fixture_isolates_the_test(isolated_registry):
    (block,) = [block for block in blocks(DOCS / "plugins.md") if "isolated_registry" in block]
    lines = {}
    exec(block, lines)
    lines["test_a_class_of_the_running_process"](isolated_registry)
    assert isolated_registry.get("scratch").plugin == isolated_registry.LOCAL


def test_the_checks_that_a_chapter_names_exist():
    of_tools = [checks_of_tools(kind) for kind in CONTRACTS]
    every = {check.__name__ for checks in [*CHECKS.values(), *CONTRACTS.values(), *of_tools] for check in checks}
    for page in CHAPTERS:
        assert set(re.findall(r"`(check_\w+)`", page.read_text("utf-8"))) <= every


PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_the_files_of_the_page_exist():
    names = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(names) > 20
    places = [ROOT, ROOT / "pml_ext", ROOT / "plugins" / "pml_ext_train", ROOT / "plugins" / "pml_ext_search"]
    assert [name for name in names if not any((place / name).is_file() for place in places)] == []


def test_the_tree_has_every_room():
    rooms = [*(ROOT / "pml_ext").glob("*/__init__.py"), *(ROOT / "plugins" / "pml_ext_train").glob("*/__init__.py")]
    plugins = (ROOT / "plugins").glob("*/__init__.py")
    assert [room for room in rooms if f"{room.parent.name}/" not in PAGE] == []
    assert [plugin for plugin in plugins if plugin.parent.name not in PAGE] == []


def test_long_files_have_a_reason():
    reasons = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| why it is one |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w/]+\.py)` \| \S", reasons, re.MULTILINE)
    files = [*(ROOT / "pml_ext").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    long = {file.relative_to(ROOT).as_posix() for file in files if len(file.read_text("utf-8").splitlines()) > 400}
    assert long <= set(listed)
    assert len(listed) <= 12
    assert all((ROOT / name).is_file() for name in listed)

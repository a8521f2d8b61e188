"""The page for somebody who has a folder of photographs: its commands, one after another."""

import importlib.util
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext_train.networks.efficientnet_lite import VARIANTS

PAGE = Path(__file__).parents[2] / "docs" / "photographs.md"
LITE0 = VARIANTS["efficientnet-lite0"]
SMALL_IMAGES = ("--set", "data.image_size=16")
FEW_STEPS = ("--set", "sampler.iterations=2", *SMALL_IMAGES)


def smaller(line):
    """Settings with which a command of the page takes seconds."""
    if " fit " in line:
        epochs = 9 if "--fine-tune" in line else 2  # the last blocks take 8 before the whole network is trained
        return (*FEW_STEPS, "--set", f"schedule.epochs={epochs}")
    if " train " in line:
        # Whitening within classes of 1,280 features separates 16 images, and no pair would add to the loss.
        settings = (*FEW_STEPS, "--set", "sampler.batch_size=8", "--set", "model.start=random")
        return settings if "schedule.epochs" in line else (*settings, "--set", "schedule.epochs=1")
    return SMALL_IMAGES if " probe " in line else ()


@pytest.mark.timeout(900)
def test_every_command_of_the_page_runs(tmp_path, monkeypatch, pml_ext_command):
    generator = np.random.default_rng(0)
    for label, name in enumerate(("heron", "wren", "owl", "kite")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(1, 9):
            brightness = 10 * label + generator.integers(0, 120)  # which classes share, so that there is a loss
            pixels = (brightness + generator.integers(0, 60, (40, 50, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number:04d}.jpg")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 11
    has_lite = all(importlib.util.find_spec(package) for package in ("timm", LITE0.package))
    for line in lines:
        if "IMAGENET1K" in line or "cbml/frozen" in line:  # with weights that torchvision downloads
            continue
        needs_lite = any(part in line for part in ("efficientnet", "photographs-pretrained", "--fine-tune"))
        if needs_lite and not has_lite:
            continue
        program, *arguments = shlex.split(line)
        assert program == "pml-ext"
        done = pml_ext_command(*arguments, *smaller(line))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if arguments[0] == "query":
            assert "photos" in done.stdout or "heron/" in done.stdout
    report = (tmp_path / "first" / "report.html").read_text("utf-8")
    assert "On images of its classes that it has not seen, the nearest image is right for" in report
    for title in ("Recall@1 by class", "Commands to type next"):
        assert title in report
    assert "Training images as the network saw them" not in report  # nothing was trained
    assert re.search(
        r"Time: trials [\d.]+ s, (\w+ [\d.]+ s, )*figures [\d.]+ s\.", report
    )  # phases of no time are left out
    worst = re.findall(r'<th scope="row">(\w+)</th><td>([\d.]+)</td>(?=<td><img)(.*)</tr>', report)
    assert sorted(name for name, _, _ in worst) == ["heron", "kite", "owl", "wren"]
    for name, recall, pictures in worst:  # a query, and an image of another class where one was taken for it
        alts = re.findall(r'alt="(\w+)"', pictures)
        assert alts[0] == name
        assert len(set(alts)) == len(alts) == 1 + (float(recall) < 100)
    assert (tmp_path / "second" / "report.html").read_text("utf-8").count("<figure>") == 3

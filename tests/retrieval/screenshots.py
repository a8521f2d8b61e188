"""The pictures of docs/browse.md: two runs on Omniglot's small sets, and the page in headless Chromium.

python tests/retrieval/screenshots.py FOLDER, the folder having images_background_small1.zip and
images_background_small2.zip; five minutes, or seconds with a --work folder of before.
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[2] / "docs" / "images"
RUNS = {"cbml": ["cbml/omniglot-small"], "triplets": ["triplets/omniglot-small", "--set", "schedule.epochs=3"]}
SIZE = {"width": 1280, "height": 820}


def prepare(data: Path, work: Path) -> None:
    """Two trained runs, and the characters of small2 as white drawings on black, a sub-folder for each."""
    for name, recipe in RUNS.items():
        if not (work / name / "metrics.json").exists():
            command = [
                sys.executable,
                "-m",
                "pml_ext",
                "train",
                *recipe,
                "--data",
                str(data),
                "--out",
                str(work / name),
            ]
            subprocess.run(command, check=True)
    if (work / "omniglot").exists():
        return
    with zipfile.ZipFile(data / "images_background_small2.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".png"):
                *_, alphabet, character, file = name.split("/")
                place = work / "omniglot" / f"{alphabet} {character[-2:]}"
                place.mkdir(parents=True, exist_ok=True)
                with Image.open(io.BytesIO(archive.read(name))) as drawing:
                    ImageOps.invert(drawing.convert("L")).save(place / file)


def take(page: Page, name: str) -> None:
    page.wait_for_timeout(2500)  # small pictures come after what they stand in
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
    IMAGES.mkdir(exist_ok=True)
    picture.save(IMAGES / f"browse-{name}.png", optimize=True)
    print(f"{IMAGES / f'browse-{name}.png'}: {(IMAGES / f'browse-{name}.png').stat().st_size // 1000} kB")


def click_through(page: Page, address: str) -> None:
    page.goto(address)
    page.locator(".pml-grid figure[role=button]").first.wait_for()
    page.get_by_role("tab", name="Right and wrong").click()
    page.locator(".pairs figure").first.wait_for(timeout=120_000)
    take(page, "wrong")
    page.locator(".pairs figure").nth(2).click()
    page.get_by_text("Nearest by triplets").wait_for()
    page.set_viewport_size({**SIZE, "height": 1200})
    take(page, "query")
    page.set_viewport_size(SIZE)
    page.get_by_role("tab", name="Clusters").click()
    page.get_by_role("button", name="Find clusters").click()
    page.locator(".clusters figure").first.wait_for(timeout=120_000)
    take(page, "clusters")
    page.get_by_role("tab", name="Map").click()
    page.locator(".pml-map .legend span").first.wait_for(timeout=120_000)
    edges, hover = page.locator(".pml-map canvas").bounding_box(), page.locator(".pml-map .hover img")
    assert edges is not None
    for step in range(60):
        if not hover.is_visible():
            page.mouse.move(edges["x"] + edges["width"] * 0.5 - 6 * step, edges["y"] + edges["height"] * 0.4)
    take(page, "map")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("screenshots"))
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    prepare(options.data, options.work)
    command = [sys.executable, "-m", "pml_ext", "browse", "cbml", "omniglot", "--beside", "triplets", "--port", "0"]
    with subprocess.Popen([*command, "--no-open"], cwd=options.work, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            match = re.match(r"http://\S+", server.stdout.readline())
            assert match, "the page did not start"
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport=SIZE)
                page.set_default_timeout(60_000)
                click_through(page, match[0])
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()

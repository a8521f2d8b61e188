"""Draw the pictures of docs/browse.md: two runs on Omniglot, and the page in Chromium.

python -m benchmarks.browse_screenshots DATA [--work FOLDER], where DATA has images_background_small1.zip and 2. Five
minutes, or seconds with the runs of an earlier --work FOLDER.
"""

import argparse
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUNS = {"cbml": ["cbml/omniglot-small"], "triplets": ["triplets/omniglot-small", "--set", "schedule.epochs=3"]}
PROGRAM = [sys.executable, "-m", "pml_ext"]


def prepare(data: Path, work: Path) -> None:
    """Train two runs, and write both sets' characters in white on black."""
    for name, recipe in RUNS.items():
        if not (work / name / "metrics.json").exists():
            subprocess.run([*PROGRAM, "train", *recipe, "--data", data, "--out", work / name], check=True)
    for archive in sorted(data.glob("images_background_small*.zip")):
        with zipfile.ZipFile(archive) as files:
            for name in files.namelist():
                *_, alphabet, character, file = ["", "", *name.split("/")]
                place = work / "omniglot" / f"{alphabet}/{character}".replace("/", "_")
                if name.endswith(".png") and not (place / file).exists():
                    place.mkdir(parents=True, exist_ok=True)
                    with Image.open(io.BytesIO(files.read(name))) as drawing:
                        ImageOps.invert(drawing.convert("L")).save(place / file)


def write_copies(place: Path) -> None:
    (place / "from phone").mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(load_sample_images().images):
        photograph = Image.fromarray(pixels)
        for square in range(6):
            left, top = square % 3 * 213, square // 3 * 213
            image = photograph.crop((left, top, left + 213, top + 213))
            file = place / f"{'china' if number == 0 else 'flower'}-{square}.png"
            image.save(file)
            if square % 2 == 0:
                copies = place / "from phone" / file.stem
                image.save(f"{copies}.jpg", quality=60)
                image.resize((106, 106)).save(f"{copies} small.webp")
                image.crop((6, 6, 207, 207)).save(f"{copies} cropped.jpg", quality=90)


@contextlib.contextmanager
def served(work: Path, *options: str) -> Iterator[str]:
    command = [*PROGRAM, "browse", *options, "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().split()[0]
        finally:
            server.terminate()


def take(name: str, address: str, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--window-size={width},{height}"]
        shot = Path(profile) / "shot.png"
        subprocess.run([shutil.which("chromium"), *flags, f"--screenshot={shot}", address], check=True)
        Image.open(shot).convert("RGB").quantize(128).save(IMAGES / f"browse-{name}.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("screenshots"))
    options = parser.parse_args()
    prepare(options.data, options.work)
    write_copies(options.work / "scenes")
    with served(options.work, "cbml", "omniglot", "--beside", "triplets") as address:
        wrong = urllib.request.urlopen(f"{address}/answers").read().decode()
        image = re.search(r"\?run=0&amp;image=(\d+)", wrong)[1]
        take("wrong", f"{address}/answers", 1280, 820)
        take("query", f"{address}/?run=0&image={image}&k=9", 1280, 900)
        take("clusters", f"{address}/clusters?clusters=40", 1280, 820)
        take("map", f"{address}/map", 1280, 960)
    with served(options.work, "cbml", "scenes") as address:
        urllib.request.urlopen(f"{address}/copies", data=b"")
        while json.load(urllib.request.urlopen(f"{address}/copies/state"))["phase"] == "running":
            time.sleep(0.2)
        take("copies", f"{address}/copies", 1280, 1000)


if __name__ == "__main__":
    main()

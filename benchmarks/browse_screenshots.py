"""Draw the pictures of docs/browse.md: two runs on Omniglot's small sets, and the page in headless Chromium.

python -m benchmarks.browse_screenshots DATA [--work FOLDER], DATA having images_background_small1.zip and
images_background_small2.zip; five minutes, or seconds with the runs of an earlier --work FOLDER.
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from PIL import Image, ImageOps

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUNS = {"cbml": ["cbml/omniglot-small"], "triplets": ["triplets/omniglot-small", "--set", "schedule.epochs=3"]}
PROGRAM = [sys.executable, "-m", "pml_ext"]


def prepare(data: Path, work: Path) -> None:
    """Train two runs, and write the characters of both sets as white drawings on black, a sub-folder for each."""
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


def take(name: str, address: str, width: int, height: int) -> None:
    """Save what Chromium shows of an address."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--window-size={width},{height}"]
        shot = Path(profile) / "shot.png"
        subprocess.run([shutil.which("chromium"), *flags, f"--screenshot={shot}", address], check=True)
        Image.open(shot).convert("RGB").quantize(128).save(IMAGES / f"browse-{name}.png", optimize=True)


def main() -> None:
    """Train, serve and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("screenshots"))
    options = parser.parse_args()
    prepare(options.data, options.work)
    command = [*PROGRAM, "browse", "cbml", "omniglot", "--beside", "triplets", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=options.work, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[0]
            wrong = urllib.request.urlopen(f"{address}/answers").read().decode()
            image = re.search(r"\?run=0&amp;image=(\d+)", wrong)[1]
            take("wrong", f"{address}/answers", 1280, 820)
            take("query", f"{address}/?run=0&image={image}&k=9", 1280, 900)
            take("clusters", f"{address}/clusters?clusters=40", 1280, 820)
            take("map", f"{address}/map", 1280, 960)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()

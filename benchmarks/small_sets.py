"""Five small sets of photographs, to compare trainings on few of them.

    python -m benchmarks.small_sets CARS OUT     # CARS: folders train and test, with a folder for each class

``OUT/N-final`` trains on 24 random classes of CARS/train and is tested on all of CARS/test; ``OUT/N-trial`` trains on
16 of these classes and is tested on the other 8. Each class has 20 photographs, as links.
"""

import argparse
import random
from pathlib import Path

CLASSES = 24
HELD_OUT = 8
PHOTOGRAPHS = 20  # of each class


def link(folder, target):
    """Link the first photographs of a class below a target folder."""
    (target / folder.name).mkdir(parents=True)
    for photograph in sorted(folder.iterdir())[:PHOTOGRAPHS]:
        (target / folder.name / photograph.name).symlink_to(photograph.resolve())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cars", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", type=int, default=5)
    chosen = parser.parse_args()
    training, tested = (sorted((chosen.cars / part).iterdir()) for part in ("train", "test"))
    for number in range(chosen.sets):
        final = chosen.out / f"{number}-final"
        trial = chosen.out / f"{number}-trial"
        classes = random.Random(number).sample(training, CLASSES)
        for place, folder in enumerate(classes):
            link(folder, final / "train")
            link(folder, trial / ("train" if place < CLASSES - HELD_OUT else "test"))
        for folder in tested:
            link(folder, final / "test")


if __name__ == "__main__":
    main()

"""Damaged image files through everything that opens them: an image or a DataError with the file's name, nothing else.

Small images of all formats are mutated by a seeded generator, and read as training, an index and a query read them.
"""

import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pml_ext.errors import DataError
from pml_ext_search.embedding.reading import FileImages, as_tensor
from pml_ext_train.data import LabeledImages, build_transforms, open_image, prepare

FORMATS = {"JPEG": "jpg", "PNG": "png", "TIFF": "tif", "BMP": "bmp", "GIF": "gif", "WEBP": "webp", "PPM": "ppm"}
PIECES = (b"P6\n50 40\n255\x0e\xac", b"\xff" * 8, bytes(8), b"\xff\xd8\xff\xe0", b"IDAT", b"II*\x00")
_, STEPS = build_transforms(32, 3, crop=True)


def mutated(form: str, seed: int) -> bytes:
    """Return an image file with up to eight damages: bytes replaced, cut out, doubled, or overwritten by a header."""
    generator = np.random.default_rng([seed, *form.encode()])
    pixels = generator.integers(256, size=(40, 50, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    content = bytearray(buffer.getvalue())
    for _ in range(generator.integers(1, 9)):
        most = len(content) if generator.random() < 0.5 else min(len(content), 64)  # headers are small
        place = int(generator.integers(most + 1))
        length = int(generator.integers(1, 17))
        kind = generator.integers(5)
        if kind == 0:
            content[place : place + length] = generator.bytes(length)
        elif kind == 1:
            del content[place : place + length]
        elif kind == 2:
            content[place:place] = content[place : place + length]
        elif kind == 3:
            piece = PIECES[generator.integers(len(PIECES))]
            content[place : place + len(piece)] = piece
        elif kind == 4 and generator.random() < 0.3:
            del content[place:]
    return bytes(content)


def mutants(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield so many names of files, and their content, the formats in turns; the first is one that Pillow fails at."""
    yield "head.ppm", PIECES[0]
    forms = list(FORMATS)
    for number in range(1, count):
        form = forms[number % len(forms)]
        yield f"{number}.{FORMATS[form]}", mutated(form, number)


def _size(file: Path) -> Any:
    with open_image(file) as image:
        return image.size


def _indexed(file: Path) -> Any:
    image, _, why = FileImages([file], 3, STEPS)[0]
    if image is None:
        raise DataError(why)
    return image


def _queried_as_image(file: Path) -> Any:
    """A Pillow image, whose pixels are decoded when it is embedded; what Pillow raises before is the caller's."""
    try:
        image = Image.open(file)
    except Exception as error:  # decoders raise many types
        raise DataError(f"{file}: {error}") from None
    with image:
        return as_tensor(image, 3, None)


READERS: dict[str, Callable[[Path], Any]] = {
    "size": _size,
    "trained": lambda file: LabeledImages([file], [0], ["a"], transform=STEPS)[0],
    "skipped": lambda file: prepare(
        LabeledImages([file], [0], ["a"]), STEPS, "memory", skip_unreadable=True, workers=1
    ),
    "indexed": _indexed,
    "queried": lambda file: as_tensor(file, 1, STEPS.smallest),
    "queried as an image": _queried_as_image,
}


def raw_errors(place: Path, count: int) -> tuple[list[str], Counter[str]]:
    """Read so many damaged images in each way; return the errors of other kinds, and how often a file was read."""
    wrong: list[str] = []
    outcomes: Counter[str] = Counter()
    with warnings.catch_warnings(action="ignore"):
        for name, content in mutants(count):
            file = place / name
            file.write_bytes(content)
            for way, reader in READERS.items():
                try:
                    reader(file)
                    outcomes["read"] += 1
                except DataError as error:
                    outcomes["refused"] += 1
                    if name not in str(error):
                        wrong.append(f"{name}, {way}: no name in {error}")
                except Exception as error:
                    wrong.append(f"{name}, {way}: {type(error).__name__}: {error}")
            file.unlink()
    return wrong, outcomes

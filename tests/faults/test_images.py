"""Damaged image files through everything that opens them: an image, or a DataError with the file's name."""

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
    buffer = io.BytesIO()
    Image.fromarray(generator.integers(256, size=(40, 50, 3), dtype=np.uint8)).save(buffer, form)
    content = bytearray(buffer.getvalue())
    for _ in range(generator.integers(1, 9)):
        most = len(content) if generator.random() < 0.5 else min(len(content), 64)  # headers are small
        place = int(generator.integers(most + 1))
        length = int(generator.integers(1, 17))
        piece = PIECES[generator.integers(len(PIECES))]
        rest = content[place:]
        damages = [
            generator.bytes(length) + rest[length:],  # replaced
            rest[length:],  # cut out
            rest[:length] + rest,  # doubled
            piece + rest[len(piece) :],  # overwritten by a header
            b"" if generator.random() < 0.3 else rest,  # cut off
        ]
        content[place:] = damages[generator.integers(5)]
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


def test_damaged_images_are_read_or_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # the setting below changes it
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "1000000")  # headers that claim more are not worth the time
    wrong = []
    outcomes = Counter()
    with warnings.catch_warnings(action="ignore"):
        for name, content in mutants(71):
            file = tmp_path / name
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
    assert wrong == []
    assert outcomes["read"] > 50
    assert outcomes["refused"] > 200

"""Image files as tensors: rotation, channels, crop box, and reduced JPEGs."""

import contextlib
import itertools
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from pml_ext.errors import ConfigError, DataError, PmlExtError, TooManyPixelsError, one_line

from ..files import PAGED_ENDINGS, file_and_page
from .transforms import KEPT_WHEN_REDUCED

# Formats that Pillow may detect; others run programs (EPS runs Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF", "AVIF", "JPEG2000")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # bytes 8 to 12 of a file
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".avif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpf", ".jpx", ".heic", ".heif", ".hif"),
)
"""Endings of image file names, in lower case; folders, indexes and archives read no others."""

_ANIMATED = ("GIF", "PNG", "WEBP", "AVIF")  # formats whose frames may be images of their own
_SUBFILE = 254  # tag of a TIFF's page: bit 0 marks a smaller copy of another page
MAX_PIXELS = "PML_EXT_MAX_PIXELS"  # environment variable that replaces Pillow's limit of pixels
STRIP = 64  # rows of an image that are copied at once
NEAR_GROUND = 32  # gray levels within which visible pixels vanish on a ground
ORIENTATION = 0x0112  # EXIF tag
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")


class DamagedImageError(DataError):
    """A file that cannot be read as an image until it is changed."""


class Box(NamedTuple):
    """Part of an image in pixels; ``right`` and ``bottom`` are exclusive."""

    left: float
    top: float
    right: float
    bottom: float


@contextlib.contextmanager
def open_image(file: str | Path | IO[bytes], name: str | None = None) -> Iterator[Any]:
    """Open the first image of a file with Pillow, or its page ``FILE#N``; read its pixels inside the block.

    Whatever Pillow raises, also inside the block, becomes a DataError with the file's ``name``. Formats are
    :data:`FORMATS`, and HEIC with the extra ``heic``. ``PML_EXT_MAX_PIXELS`` replaces Pillow's limit of pixels.
    """
    if name is None:
        name = str(file)
    page = 1
    with _naming_damage(name):
        if isinstance(file, (str, Path)):
            file, page = file_and_page(Path(file))
            if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would never end
                raise DataError(f"{name}: not a regular file; it must be an image file")
        limit = _max_pixels()
        with _opened(file, name) as image:
            if page > 1:
                image.seek(page - 1)
            if limit is not None and image.width * image.height > limit:
                raise TooManyPixelsError(
                    f"{name}: {image.width} x {image.height} pixels exceed {MAX_PIXELS}={limit} in the environment; "
                    "set a larger number"
                )
            yield image


def pages_of(file: Path) -> list[int]:
    """Numbers of a file's pages or frames, from 1; empty for a single image or an unreadable file."""
    pages: list[int] = []
    if file.name.lower().endswith(PAGED_ENDINGS):
        with contextlib.suppress(DataError), open_image(file) as image:
            if image.format == "TIFF":
                _add_pages(image, pages)
            elif image.format in _ANIMATED:
                pages.extend(range(1, getattr(image, "n_frames", 1) + 1))
    return [] if pages == [1] else pages


def _add_pages(tiff: Any, pages: list[int]) -> None:
    """Add a file's pages; a damaged one is the last, and reading it says why."""
    for page in itertools.count(1):
        pages.append(page)
        try:
            tiff.seek(page - 1)
        except EOFError:
            pages.pop()
            return
        if tiff.tag_v2.get(_SUBFILE, 0) & 1:
            pages.pop()


@contextlib.contextmanager
def _naming_damage(name: str) -> Iterator[None]:
    """Turn what Pillow raises into a DataError with the file's name."""
    try:
        yield
    except PmlExtError:
        raise
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; put it back, or remove it from the list of images") from None
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(
            f"{name}: too many pixels ({one_line(error)}). To raise the limit, set {MAX_PIXELS}=NUMBER in the "
            "environment"
        ) from None
    except Exception as error:  # decoders raise many types, such as struct.error and TypeError
        is_of_system = isinstance(error, OSError) and error.errno is not None
        if is_of_system or isinstance(error, MemoryError) or "memory" in str(error):  # of Pillow's decoders
            raise DataError(f"{name}: not readable now ({one_line(error)}); try again") from None
        raise DamagedImageError(f"{name}: not a readable image ({one_line(error)}); mend or remove the file") from None


def _max_pixels() -> int | None:
    """The limit of pixels in the environment, also set in Pillow, or None."""
    text = os.environ.get(MAX_PIXELS)
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(
            f"{MAX_PIXELS}={text} in the environment is not a number of pixels; type {MAX_PIXELS}=500000000"
        )
    Image.MAX_IMAGE_PIXELS = int(text)
    return int(text)


def _opened(file: str | Path | IO[bytes], name: str) -> Any:
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        if not _is_heif(file):
            raise
    try:
        import pillow_heif
    except ModuleNotFoundError:
        missing = "HEIC is read by the package pillow-heif, which is not installed"
        raise DataError(f'{name}: {missing}. Run: pip install "pml-ext[heic]"') from None
    pillow_heif.register_heif_opener()
    return Image.open(file, formats=["HEIF"])


def _is_heif(file: str | Path | IO[bytes]) -> bool:
    with open(file, "rb") if isinstance(file, (str, Path)) else contextlib.nullcontext(file) as opened:
        opened.seek(0)
        start = opened.read(12)
        opened.seek(0)
    return start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS


def read_image(
    path: str | Path | IO[bytes], channels: int = 3, box: Box | None = None, smallest: int | None = None
) -> Tensor:
    """Read an image file upright, as in :func:`image_tensor`: uint8 ``[C, H, W]``.

    JPEGs are decoded at 1/2, 1/4 or 1/8 of their size if the shorter side keeps at least ``smallest`` pixels. DataError
    if the file cannot be read, ``box`` lies outside the image, or resizing would give too many pixels.
    """
    with open_image(path) as file:
        bits = bits_of(file)
        width, height = shown_size(file)
        part = Box(0, 0, width, height) if box is None else _whole_pixels(box, width, height, path)
        sides = (part.right - part.left, part.bottom - part.top)
        _check_enlarged(sides, smallest, str(path))
        if smallest is not None and smallest < min(sides):
            reduced = [math.ceil(side * smallest / min(sides)) for side in file.size]
            file.draft(None, (reduced[0], reduced[1]))
        image = _upright(file, bits, str(path))
        if box is not None:
            image = image.crop(_scaled(part, (width, height), image.size))  # the draft may be smaller
        return _pixels(image, channels)


def shown_size(image: Any) -> tuple[int, int]:
    """Width and height of an opened image, rotated by its EXIF orientation."""
    width, height = image.size
    is_turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in (5, 6, 7, 8)  # Pillow turns TIFF's
    return (height, width) if is_turned else (width, height)


def bits_of(image: Any) -> int:
    """Bits per channel of an opened image in its file: 8 (or fewer), 10, 12, 16 or 32.

    After pixels (or EXIF, of a PNG) are read, only the mode is known.
    """
    tiles = getattr(image, "tile", None) or [("", (), 0, "")]
    codec, _, _, arguments = tiles[0]
    if ";16" in f"{image.mode} {arguments}" or codec.startswith("ppm"):  # PPM is scaled
        return 16
    if image.format == "HEIF":
        return int(image.info["bit_depth"])
    return 32 if image.mode in ("I", "F") else 8


def _check_enlarged(sides: tuple[float, float], smallest: int | None, name: str) -> None:
    """Raise an error if resizing the shorter side to ``smallest / 4`` gives too many pixels."""
    limit = _max_pixels() or 2 * (Image.MAX_IMAGE_PIXELS or math.inf)
    shorter = (smallest or 0) // KEPT_WHEN_REDUCED
    if shorter > min(sides) and shorter**2 * max(sides) / min(sides) > limit:
        raise TooManyPixelsError(
            f"{name}: {sides[0]:.0f} x {sides[1]:.0f} pixels become more than {limit:,} when the shorter side is "
            f"resized to {shorter}; crop the image"
        )


def _whole_pixels(box: Box, width: int, height: int, path: Any) -> Box:
    """Round a box outwards to whole pixels inside the image; DataError if they do not overlap."""
    left = max(0, math.floor(box.left))
    top = max(0, math.floor(box.top))
    right = min(width, math.ceil(box.right))
    bottom = min(height, math.ceil(box.bottom))
    if right <= left or bottom <= top:
        corners = ", ".join(f"{number:g}" for number in box)
        raise DataError(f"{path}: its box ({corners}) lies outside the {width} x {height} image; correct the box")
    return Box(left, top, right, bottom)


def _scaled(box: Box, before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int, int, int]:
    """Scale a box from one image size (width, height) to another, each side by its own factor."""
    return (
        math.floor(box.left * after[0] / before[0]),
        math.floor(box.top * after[1] / before[1]),
        math.ceil(box.right * after[0] / before[0]),
        math.ceil(box.bottom * after[1] / before[1]),
    )


def image_tensor(image: Any, channels: int = 3, smallest: int | None = None) -> Tensor:
    """Convert a PIL image to uint8 ``[C, H, W]``, upright, with 1 or 3 channels.

    Integers of 16 or 32 bits are scaled to 8, from the fewest of 8, 10, 12 ... bits that hold the largest value.
    Transparent images are put on white, or on black or gray if more than a quarter of the visible pixels are nearly
    white. DataError as in :func:`read_image`.
    """
    name = str(getattr(image, "filename", "") or "an image")
    with _naming_damage(name):
        _check_enlarged(image.size, smallest, name)
        return _pixels(_upright(image, bits_of(image), name), channels)


def _upright(image: Any, bits: int, name: str) -> Any:
    image = upright(image)
    if image.mode == "F":  # PIL would clip, to black where values are from 0 to 1
        raise DamagedImageError(f"{name}: its pixels are floating-point numbers; save it with 8 or 16 bits per channel")
    if image.mode.startswith("I"):  # PIL would clip, not scale
        values = np.asarray(image)
        if values.min() < 0:
            raise DamagedImageError(f"{name}: its pixels are negative numbers; save it with 8 or 16 bits per channel")
        used = (int(values.max()).bit_length() + 1) // 2 * 2
        return Image.fromarray((values >> max(0, used - 8)).astype(np.uint8))
    if bits == 16 and image.mode == "RGB" and image.getbbox() is None:
        raise DamagedImageError(f"{name}: its 16-bit colors are below 256 and would turn black; save it with 8 bits")
    return image


def upright(image: Any) -> Any:
    """Load an opened image, and rotate it by its EXIF orientation."""
    if image.format == "TIFF":
        image.filename = ""  # a file that is mapped into memory would be read by the width of the rotated image
    image.load()  # loading rotates a TIFF file
    orientation = image.getexif().get(ORIENTATION)
    if orientation in range(2, 9):
        return image.transpose(Image.Transpose[TURNS[int(orientation) - 2]])
    return image


def _pixels(image: Any, channels: int) -> Tensor:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = _on_ground(image.convert("RGBA"))
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return torch.from_numpy(_array_of(image, channels)).permute(2, 0, 1)


def _on_ground(image: Any) -> Any:
    """Put a transparent image on white, or on black or gray if it would vanish on white."""
    visible = image.convert("L").histogram(image.getchannel("A"))
    vanishing = {ground: sum(visible[max(0, ground - NEAR_GROUND) : ground + NEAR_GROUND]) for ground in (255, 0, 128)}
    ground = 255
    if 4 * vanishing[ground] > sum(visible):
        ground = min((0, 128), key=vanishing.__getitem__)
    return Image.alpha_composite(Image.new("RGBA", image.size, (ground, ground, ground, 255)), image)


def _array_of(image: Any, channels: int) -> NDArray[np.uint8]:
    """Pixels ``[H, W, C]``, in strips that fit the cache: twice as fast as ``np.array``."""
    pixels = np.empty((image.height, image.width, channels), dtype=np.uint8)
    for top in range(0, image.height, STRIP):
        bottom = min(top + STRIP, image.height)
        strip = np.asarray(image.crop((0, top, image.width, bottom)))
        pixels[top:bottom] = strip.reshape(bottom - top, image.width, channels)
    return pixels

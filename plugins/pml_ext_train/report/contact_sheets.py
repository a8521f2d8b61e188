"""Contact sheets: rows of captioned pictures."""

import functools
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from .figures import GRAY, WRONG
from .fonts import drawable, font_families, short_name

CELL = 108  # pixels from one picture of a sheet to the next
_ROW = 10
_GAP = 6
_TITLE = 30
_CAPTION = 16
_LETTERS = 15  # maximum length of a caption
_INK = "#1a202c"


def contact_sheet(
    title: str,
    images: Sequence[Image.Image],
    captions: Sequence[str] = (),
    framed: Sequence[bool] = (),
    frame: str | None = None,
) -> Image.Image:
    """Draw a title and rows of ten images; frames are red by default."""
    below = _CAPTION if captions else 0
    rows = math.ceil(len(images) / _ROW)
    width = _ROW * CELL + _GAP
    height = _TITLE + rows * (CELL + below) + _GAP
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_GAP + 2, 7), drawable(title.replace("\n", " ")), 14, _INK)
    side = CELL - _GAP
    for place, image in enumerate(images):
        row, column = divmod(place, _ROW)
        left = _GAP + column * CELL
        top = _TITLE + row * (CELL + below)
        shown = image.convert("RGB")
        shown.thumbnail((side, side))
        if max(shown.size) < side:  # a drawing of a few pixels is enlarged without interpolation
            shown = ImageOps.contain(shown, (side, side), Image.Resampling.NEAREST)
        picture_left = left + (side - shown.width) // 2
        picture_top = top + (side - shown.height) // 2
        sheet.paste(shown, (picture_left, picture_top))
        color = GRAY
        if framed and framed[place]:
            color = frame or WRONG
            corner = (picture_left + shown.width - 1, picture_top + shown.height - 1)
            draw.rectangle((picture_left, picture_top, *corner), outline=color, width=3)
        if captions:
            _write(draw, (left, top + side + 1), short_name(captions[place], _LETTERS), 11, color)
    return sheet


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, size: int, color: str) -> None:
    font = _font(font_file(text), size)
    draw.text((corner[0], corner[1] + size), text, fill=color, font=font, anchor="ls")


_font = functools.cache(ImageFont.truetype)


def font_file(text: str) -> str:
    """Return the first font with every letter of a text, else DejaVu Sans."""
    from matplotlib.font_manager import findfont

    if text.isascii():
        return findfont("DejaVu Sans")
    files = [findfont(family) for family in font_families()]
    codes = set(map(ord, text))
    return next((file for file in files if codes <= _letters(file)), files[0])


@functools.cache
def _letters(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(file).get_charmap())

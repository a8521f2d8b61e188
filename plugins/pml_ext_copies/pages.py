"""A page and a contact sheet of copies."""

import base64
import functools
import io
from pathlib import Path
from typing import Any

from pml_ext.errors import needs_extra, printable
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import CELL, RIGHT, PictureReader, contact_sheet

from .groups import Copy, Duplicates

PAIRS = 200  # on a page, which is then of about 3 MB
ON_SHEET = 300  # images of a contact sheet
_PICTURE = 240  # longer side of a picture on a page, in pixels


def write_sheet(found: Duplicates, file: Path) -> None:
    """Write a contact sheet, group after group, with frames around the images to keep."""
    reader = PictureReader(channels=3)
    captions = []
    kept = []
    images: list[Path] = []
    for number, group in enumerate(found.groups, start=1):
        for image in group.images:
            is_kept = group.keeps(image)
            captions.append(f"{number} keep" if is_kept else f"{number} {group.kind} {image.distance:.2f}")
            kept.append(is_kept)
            images.append(image.file)
    title = f"{len(found.groups)} groups of copies; those to keep are framed"
    if len(images) > ON_SHEET:
        title += f"; the first {ON_SHEET} images"
    pictures = [reader.image(image, CELL) for image in images[:ON_SHEET]]
    sheet = contact_sheet(title, pictures, captions, kept, RIGHT)
    write_atomically(file, functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheet has")


def write_page(found: Duplicates, file: Path, title: str, summary: str) -> None:
    """Write a page of the first 200 pairs: an image to keep and a copy."""
    with needs_extra("train", "a page of copies"):
        import jinja2
    reader = PictureReader(channels=3)
    pairs: list[dict[str, Any]] = []
    for number, group in enumerate(found.groups, start=1):
        for copy in group.others[: PAIRS - len(pairs)]:
            about = {"group": number, "kind": group.about(copy), "distance": f"{copy.distance:.3f}"}
            pairs.append(about | {"kept": _shown(group.keep, reader), "other": _shown(copy, reader)})
    total = sum(len(group.others) for group in found.groups)
    loader = jinja2.PackageLoader(__package__, ".")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("duplicates.html.jinja")
    write_text(file, template.render(title=title, summary=summary, pairs=pairs, total=total))
    reader.warn("the page has")


def _shown(image: Copy, reader: PictureReader) -> dict[str, str]:
    about = "" if image.width is None else f"{image.width} x {image.height}, "
    file = io.BytesIO()
    reader.image(image.file, _PICTURE).convert("RGB").save(file, "JPEG", quality=70)
    picture = base64.b64encode(file.getvalue()).decode("ascii")
    return {"path": printable(image.path), "about": f"{about}{image.bytes:,} bytes", "picture": picture}

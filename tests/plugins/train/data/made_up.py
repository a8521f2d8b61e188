"""Small made-up sets in the layouts of the published ones: all files are there."""

import io
import itertools
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(path: Path, shade: int = 0, size=(20, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade % 256,) * 3).save(path, quality=95)
    return path


def save(path: Path, color=(200, 30, 30), size=(20, 16), mode="RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


def write_deep_png(path: Path, pixels) -> None:
    """A PNG with 16 bits a channel, ``[H, W, 3]``, which Pillow cannot write."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in [*chunks, (b"IEND", b"")]:
        content += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    path.write_bytes(content)


def photos(place: Path, classes=4, images=6) -> Path:
    """A folder of small images for each class."""
    for label in range(classes):
        for number in range(images):
            save(place / f"class{label}" / f"{number}.png", (50 * label, 10 * number, 0))
    return place


def cub_folder(place: Path, classes=4, each=3) -> Path:
    """Birds, by default four of three photographs; class ids from 1, image ids from 1."""
    images = [(f"{n + 1:03}.Bird_{n + 1}/Bird_{k}.jpg", n + 1) for n in range(classes) for k in range(each)]
    for number, (path, _) in enumerate(images):
        jpeg(place / "images" / path, 10 * number)
    lists = {
        "images.txt": [f"{i} {path}" for i, (path, _) in enumerate(images, 1)],
        "image_class_labels.txt": [f"{i} {label}" for i, (_, label) in enumerate(images, 1)],
        "classes.txt": [f"{n} {n:03}.Bird_{n}" for n in range(1, classes + 1)],
        "bounding_boxes.txt": [f"{i} 2.0 3.0 10.0 8.0" for i in range(1, len(images) + 1)],
    }
    for name, lines in lists.items():
        (place / name).write_text("\n".join(lines) + "\n")
    return place


def cars_folder(place: Path, classes=4, each=3) -> Path:
    from scipy.io import savemat

    corners = [(f"bbox_{corner}", "O") for corner in ("x1", "y1", "x2", "y2")]
    rows = np.zeros((1, classes * each), dtype=[("relative_im_path", "O"), *corners, ("class", "O"), ("test", "O")])
    for i in range(classes * each):  # the official split, "test", has nothing to do with the classes
        rows[0, i] = (f"car_ims/{i + 1:06}.jpg", 3, 2, 12, 9, i % classes + 1, i // classes % 2)
        jpeg(place / "car_ims" / f"{i + 1:06}.jpg", 10 * i)
    names = np.array([f"Maker {n} 2012" for n in range(classes)], dtype=object)[None]
    savemat(place / "cars_annos.mat", {"annotations": rows, "class_names": names})
    return place


def sop_folder(place: Path, classes=4, each=3, tested=2) -> Path:
    trained = classes - tested
    for part, first, count in (("train", 0, trained), ("test", trained, tested)):
        lines = ["image_id class_id super_class_id path"]
        for i in range(count * each):
            path = f"{'bicycle' if i < 3 else 'mug'}_final/{1000 + first + i // each}_{i % each}.JPG"
            jpeg(place / path, 10 * i)
            lines.append(f"{i + 1} {first + i // each + 1} {1 + i // each} {path}")
        (place / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    return place


def inshop_folder(place: Path, classes=4, each=3, tested=2) -> Path:
    lines = []
    for item in range(classes):
        for k in range(each):
            path = f"img/WOMEN/Blouses_Shirts/id_{item:08}/0{k}_1_front.jpg"
            jpeg(place / path, 20 * item + k)
            part = "train" if item < classes - tested else "query" if k == 0 else "gallery"
            lines.append(f"{path:<70} id_{item:08}   {part}")
    (place / "list_eval_partition.txt").write_text(
        f"{len(lines)}\nimage_name item_id evaluation_status\n" + "\n".join(lines)
    )
    return place


def imagenet_folder(place: Path, classes=4, each=4) -> Path:
    for n in range(classes):
        for part, images in (("train", each - 1), ("val", 1)):
            for k in range(images):
                jpeg(place / part / f"n0{1440764 + n}" / f"{part}_{k}.JPEG", 10 * n + k)
    return place


def omniglot_zip(path: Path, alphabets: dict[str, int], drawings=3, random=None) -> bytes:
    """Omniglot's layout, of bars, or of noise that a generator draws."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/", "")
        for alphabet, characters in alphabets.items():
            for character, number in itertools.product(range(characters), range(drawings)):
                pixels = np.full((105, 105), 255, dtype=np.uint8)
                pixels[10 * character : 10 * character + 20] = 0
                if random is not None:
                    pixels = np.kron(random.integers(2, size=(15, 15), dtype=np.uint8) * 255, np.ones((7, 7), np.uint8))
                buffer = io.BytesIO()
                Image.fromarray(pixels).convert("1").save(buffer, "png")
                archive.writestr(
                    f"{path.stem}/{alphabet}/character{character + 1:02}/{number:04}_01.png", buffer.getvalue()
                )
    return path.read_bytes()

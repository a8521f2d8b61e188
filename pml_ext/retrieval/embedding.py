"""From images to embeddings: single ones, and folders with what had to be left out."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import image_files, read_image, visible_files
from ..errors import DataError
from ..files import write_atomically
from ..network import Network
from .checks import check_images_folder

Images = Path | str | Tensor | Sequence[Any]


class SkippedImage(UserWarning):
    """A file of a folder was left out; the text has its path and why."""


@dataclasses.dataclass(frozen=True)
class Embedded:
    """Images of a folder and their embeddings.

    Args:
        folder: where they lie.
        paths: relative to the folder.
        embeddings: ``[N, D]``, normalized.
        skipped: ``{path: why}`` of files that are no readable images.
    """

    folder: Path
    paths: list[str]
    embeddings: Tensor
    skipped: dict[str, str]

    @property
    def classes(self) -> list[str]:
        """The first sub-folder of every image; "" for one that lies in the folder itself."""
        return [class_of(path) for path in self.paths]


def class_of(path: str) -> str:
    """The first sub-folder of a path; "" where it has none."""
    return path.partition("/")[0] if "/" in path else ""


class ImageEmbedder:
    """A trained network with the preprocessing of its run.

    Args:
        name: of the run, for errors.
        network: in evaluation mode.
        device: where the network is.
    """

    def __init__(self, name: str, network: Network, device: torch.device) -> None:
        self.name, self.network, self.device = name, network, device
        self.channels = network.preprocessing.channels  # what files are read as
        _, self.transform = network.preprocessing.transforms()

    @torch.no_grad()
    def embed(self, images: Images, normalize: bool, batch_size: int) -> Tensor:
        """Embeddings of single images, ``[N, D]``; see :meth:`TrainedRun.embed`."""
        parts = [images] if isinstance(images, (str, Path)) else images
        batches = [self._forward(batch, normalize) for batch in _batches(map(self._image, parts), batch_size)]
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        embeddings = torch.cat(batches)
        self._check_finite(embeddings)
        return embeddings

    @torch.no_grad()
    def embed_folder(self, folder: Path, normalize: bool, batch_size: int) -> Embedded:
        """Embeddings of all images below a folder; see :meth:`TrainedRun.embed_folder`."""
        check_images_folder(folder)
        files, skipped, kept = visible_files(folder), {}, []
        known = set(image_files(folder))

        def images() -> Iterator[Tensor]:
            for file in files:
                name = file.relative_to(folder).as_posix()
                try:
                    if file not in known:
                        raise DataError(f"{file}: no image by its name")
                    image = self._image(file)
                except DataError as error:
                    skipped[name] = str(error)
                    warnings.warn(f"skipped {error}", SkippedImage, stacklevel=2)
                    continue
                kept.append(name)
                yield image

        batches = [self._forward(batch, normalize) for batch in _batches(images(), batch_size)]
        if not batches:
            first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
            raise DataError(f"{folder}: no readable image among {len(files)} files{first}")
        embeddings = torch.cat(batches)
        self._check_finite(embeddings, kept)
        return Embedded(folder, kept, embeddings, skipped)

    def _image(self, image: Any) -> Tensor:
        if isinstance(image, (str, Path)):
            if not Path(image).is_file():
                raise DataError(f"{image}: no such file")
            image = read_image(Path(image), self.channels, smallest=self.transform.smallest)
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.ndim != 3:
            raise TypeError(f"an image is a path or a uint8 tensor [C, H, W], not {type(image).__name__}")
        return self.transform(image)  # type: ignore[no-any-return]

    def _forward(self, images: list[Tensor], normalize: bool) -> Tensor:
        embeddings: Tensor = self.network(torch.stack(images).to(self.device)).float()
        return nn.functional.normalize(embeddings) if normalize else embeddings

    def _check_finite(self, embeddings: Tensor, paths: Sequence[str] = ()) -> None:
        bad = (~embeddings.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            first = paths[bad[0]] if paths else f"number {bad[0]}"
            raise DataError(
                f"{self.name}: its network gives NaN or infinity for {len(bad)} of {len(embeddings)} images, {first} "
                "first; train it again, with a lower optimizer.lr"
            )


def names_of(images: Images) -> list[str]:
    """The path of every image, "" for one that is a tensor."""
    if isinstance(images, (str, Path)):
        return [str(images)]
    return [str(image) if isinstance(image, (str, Path)) else "" for image in images]


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Writes embeddings, paths and classes to an ``.npz`` file."""
    write_atomically(path, lambda temporary: save_npz(temporary, embedded))


def save_npz(path: Path, embedded: Embedded) -> None:
    """Writes embeddings, paths and classes to a file as it comes, without a temporary one."""
    points = embedded.embeddings.cpu().numpy()
    with path.open("wb") as file:
        np.savez(file, embeddings=points, paths=np.array(embedded.paths), classes=np.array(embedded.classes))


def _batches(images: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    batch: list[Tensor] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collects what :class:`SkippedImage` warnings say, for the command line."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", SkippedImage)
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SkippedImage):
                texts.append(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield texts

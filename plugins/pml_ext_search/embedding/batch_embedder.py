"""Embedders of batches of images: a run's network, or any :class:`Embedder`."""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pml_ext.distributed import autocast, check_precision
from pml_ext.errors import ConfigError, DataError, UnwritableError, shortened
from pml_ext_train.data import Steps
from pml_ext_train.files import FileStat
from pml_ext_train.networks import By, Network, Preprocessing, use_channels_last
from pml_ext_train.results import LoadedRun
from pml_ext_train.retrieval import Embedder, Vectors
from pml_ext_train.training import FeatureCache

from ..collection.collection import identity_of
from ..collection.problems import StoreWarning
from .reading import READ, as_tensor


class BatchEmbedder:
    """An :class:`Embedder` on batches of images; embeddings have length 1."""

    by: By = "embeddings"
    caches_features = False
    channels = 3
    transform = Steps(None, [], [], smallest=None)  # type: ignore[arg-type]
    remedy = ""

    def __init__(self, embedder: Embedder, device: torch.device) -> None:
        self._embedder = embedder
        self.device = device
        self.identity = identity_of(embedder.identity)
        self.size = embedder.size
        self.title = f"{embedder.identity}: the embedder"  # in errors

    def prepared(self, image: Any) -> Tensor:
        """An image as the input of :meth:`forward`."""
        return self.transform(as_tensor(image, self.channels, self.transform.smallest))  # type: ignore[no-any-return]

    @torch.no_grad()
    def forward(self, images: Tensor | list[Tensor], files: Mapping[Path, FileStat] | None = None) -> Tensor:
        """L2-normalized embeddings, ``[B, D]``, float32; ``files`` are the images' files."""
        pictures = [Image.fromarray(image.permute(1, 2, 0).cpu().numpy()) for image in images]
        rows = torch.as_tensor(self._embedder.embed(pictures), dtype=torch.float32, device=self.device)
        if rows.shape != (len(images), self.size):
            wanted = f"{list(rows.shape)} for {len(images)} images; its size is {self.size}"
            raise DataError(f"the embedder {self._embedder.identity} returned embeddings of the shape {wanted}")
        return nn.functional.normalize(rows)

    def from_features(self, files: Mapping[Any, Path]) -> dict[Any, Tensor]:
        """Embeddings of files whose features are cached."""
        return {}

    def not_finite(self, bad: int, images: int, first: str) -> DataError:
        """The error for NaN or infinity in some images' embeddings."""
        return DataError(f"{self.title} gives NaN or infinity for {bad} of {images} images, {first} first{self.remedy}")


class NetworkEmbedder(BatchEmbedder):
    """The network of a finished run; ``by="features"`` leaves out its head, ``cut`` all but the first dimensions."""

    remedy = "; train it again, with a lower optimizer.lr"

    def __init__(self, run: LoadedRun, by: By = "embeddings", cut: int | None = None) -> None:
        assert isinstance(run.description, Preprocessing)
        self._run = run
        self.by = by
        self.device = run.device
        self.preprocessing: Preprocessing = run.description
        self.channels = self.preprocessing.channels
        self.title = f"{run.folder}: its network"
        self.precision = run.recipe.engine.precision
        try:
            check_precision(self.device, self.precision)
        except ConfigError as error:
            self.precision = "float32"
            warnings.warn(f"{run.folder} computes in float32: {error}", StoreWarning, stacklevel=5)
        about: list[object] = [run.identity, self.preprocessing.model_dump(), self.precision]
        self.size = run.recipe.model.embedding_size
        if by == "features":
            self.size = run.description.features
            about.append(by)
        if cut is not None:
            self.size = cut
            about.append(cut)
        self.identity = identity_of(*about)
        self._memory_format = torch.contiguous_format  # of images
        # the features of a frozen trunk are cached and shared by runs
        self._frozen = run.recipe.model.freeze == "trunk" and self.precision == "float32"

    @functools.cached_property
    def network(self) -> Network:
        """The network; on a CPU, it decides the memory format of images."""
        network = self._run.network_by(self.by)
        if self.device.type == "cpu":
            self._memory_format = use_channels_last(network, self.channels, self.preprocessing.image_size)
        return network

    @functools.cached_property
    def transform(self) -> Steps:  # type: ignore[override]
        """The steps from a stored image to the network's input; imports torchvision."""
        return self.preprocessing.transforms()[1]

    @functools.cached_property
    def _features(self) -> FeatureCache | None:
        if not self._frozen:
            return None
        about = [self.preprocessing.model_dump(include=set(Preprocessing.model_fields)), ""]
        return FeatureCache(self.network.trunk, self.network.features, about, self.device, READ)

    @property
    def caches_features(self) -> bool:  # type: ignore[override]
        """Whether runs share cached features of files: the trunk is frozen."""
        return self._features is not None

    def features_of(self, files: Sequence[Path]) -> Tensor:
        """The trunk's features of files, ``[N, F]``; DataError for a bad file."""
        cached: dict[int, Vectors] = {}
        with self._features_may_fail():
            if self._features is not None:
                cached = self._features.of_files(list(files))
        missing = [place for place in range(len(files)) if place not in cached]
        rows = torch.empty(len(files), self.network.features, device=self.device)
        for place, row in cached.items():
            rows[place] = torch.from_numpy(np.array(row))
        for start in range(0, len(missing), READ):
            batch = missing[start : start + READ]
            images = torch.stack([self.prepared(files[place]) for place in batch])
            images = images.to(self.device, memory_format=self._memory_format)
            with torch.no_grad(), autocast(self.device, self.precision):
                rows[batch] = self.network.trunk(images).float()
        return rows

    @torch.no_grad()
    def forward(self, images: Tensor | list[Tensor], files: Mapping[Path, FileStat] | None = None) -> Tensor:
        """L2-normalized embeddings, ``[B, D]``, float32; features of ``files`` are cached."""
        network = self.network
        if isinstance(images, list):
            images = torch.stack(images)
        images = images.to(self.device, memory_format=self._memory_format)
        with autocast(self.device, self.precision):
            if self._features is None or not files:
                embeddings: Tensor = network(images)
            else:
                features = network.trunk(images)
                with self._features_may_fail():
                    self._features.keep([*files], [*files.values()], features)
                embeddings = network.embedder(features)
        return nn.functional.normalize(embeddings.float()[:, : self.size])

    @torch.no_grad()
    def from_features(self, files: Mapping[Any, Path]) -> dict[Any, Tensor]:
        """Embeddings of files whose features are cached."""
        features: dict[int, Vectors] = {}
        with self._features_may_fail():
            if files and self._features is not None:
                features = self._features.of_files(list(files.values()))
        if not features:
            return {}
        rows = torch.from_numpy(np.stack(list(features.values()))).to(self.device)
        keys = list(files)
        embeddings = nn.functional.normalize(self.network.embedder(rows).float()[:, : self.size])
        return {keys[place]: row for place, row in zip(features, embeddings, strict=True)}

    @contextlib.contextmanager
    def _features_may_fail(self) -> Iterator[None]:
        """Warn and go on without the feature cache if it cannot be read or written."""
        try:
            yield
        except (DataError, UnwritableError, OSError) as error:
            warnings.warn(f"features could not be cached: {shortened(error)}", StoreWarning, stacklevel=6)
            self._features = None

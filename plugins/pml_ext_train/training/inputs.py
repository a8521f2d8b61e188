"""The training input: images, features of a frozen trunk, or activations before a cut."""

from collections.abc import Iterable

import torch

from ..networks.network import Preprocessing
from ..recipe.schema import cut_of
from .activations import TrunkCut, check_size, cut_trunk
from .batches import BatchReader
from .feature_reader import FeatureReader, with_features
from .stages import Stage
from .view import View


class Inputs:
    """The readers of the stages' batches."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._cuts: dict[tuple[str, str], TrunkCut] = {}  # by block and precision
        self._readers: dict[TrunkCut | None, BatchReader | FeatureReader] = {}  # by cut

    def trained_trunk(self, stage: Stage) -> torch.nn.Module:
        """The module that a stage trains on its reader's output."""
        if self._view.frozen:
            return torch.nn.Identity()
        cut = self.cut_of(stage)
        return self._view.trunk if cut is None else cut.rest

    def cut_of(self, stage: Stage) -> TrunkCut | None:
        """The cut of the trunk in a stage."""
        table = cut_of(self._view.recipe.model.freeze) or cut_of(stage.table.freeze)
        if table is None:
            return None
        key = (table.until, table.precision)
        if key not in self._cuts:
            assert isinstance(self._view.data.preprocessing, Preprocessing)  # vectors have no trunk to cut
            self._cuts[key] = cut_trunk(self._view.trunk, table, self._view.data.preprocessing, self._view.device)
        return self._cuts[key]

    def reader_of(self, stage: Stage) -> BatchReader | FeatureReader:
        """The reader of a stage's batches."""
        cut = self.cut_of(stage)
        if cut in self._readers:
            return self._readers[cut]
        view = self._view
        images = view.data.training_images
        if cut is None and not view.frozen:
            self._readers[cut] = BatchReader(images, view.recipe.data.workers, view.device, view.memory_format)
        else:
            kept = [view.kept.of("train", number, cut) for number in self._views()]
            self._readers[cut] = FeatureReader(kept, images.labels, view.device)
        return self._readers[cut]

    def _views(self) -> range:
        """Numbers of the kept views; 0 is the unaugmented image."""
        count = self._view.recipe.model.views
        return range(1, count + 1) if count > 1 else range(1)

    def features(self, split: str, stage: Stage) -> torch.Tensor:
        """Return a split's features ``[N, F]`` under the current trunk.

        After a cut, kept activations make this four times as fast.
        """
        view = self._view
        cut = self.cut_of(stage)
        if cut is None:
            return view.embeddings(split, "trunk")
        kept = view.kept.of(split, cut=cut)
        labels = view.batches_of_labels(split, view.batch_size)
        passes = with_features(labels, kept, cut.rest, torch.nn.Identity())
        return torch.cat([each.features.float() for each in passes])

    def close(self) -> None:
        """Terminate the workers that read images."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def compute(self, stages: Iterable[Stage]) -> None:
        """Compute frozen features, or activations before cuts; each process computes a part.

        A single process leaves the features of test images to the tests.
        """
        if self._view.frozen:
            for split in self._view.splits:
                if self._view.processes > 1 or split in ("train", "validation"):
                    self._view.kept.of(split)
        for cut in dict.fromkeys(self.cut_of(stage) for stage in stages):
            if cut is None:
                continue
            validated = len(self._view.images("validation")) if "validation" in self._view.splits else 0
            size = check_size(cut, len(self._view.data.training_images), len(self._views()), validated)
            if self._view.rank == 0:
                self._view.tell(size)
            for view in self._views():
                if view == 0:
                    self._view.kept.compute_both(cut, "train")
                else:
                    self._view.kept.of("train", view, cut)
            if validated:
                self._view.kept.of("validation", cut=cut)

    def compute_views(self) -> None:
        """Compute the frozen features of all views of the training images."""
        if self._view.frozen:
            for view in self._views():
                self._view.kept.of("train", view)

"""The tables of a recipe: what keys there are, of what types, with what defaults."""

from __future__ import annotations

import typing
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ...devices import Precision
from .values import without_none

SHUFFLE = "shuffle"  # the sampler name that means plain shuffling
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


PROTOCOLS = {"nearest-class-mean": "ncm", "zero-shot": "zero_shot"}  # and how their metrics begin
TOP = (1, 5)


class Table(BaseModel):
    """A table of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NamedTable(Table):
    """A table with a ``name`` and that thing's own settings beside the table's keys."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that belong to what is named."""
        return dict(self.model_extra or {})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ImagesTable(Table):
    """``[data.images]``: how photographs become what the network gets, in training, tests and retrieval.

    Args:
        resize: the shorter side in pixels, before the cut; by default 256 / 224 of the cut.
        crop: height and width of what is cut out, and what the network gets; by default the data set's image size.
        squash: images become squares of ``resize`` pixels, or of what the network gets, whatever their form was.
        random_crop: in training, the cut is anywhere in the image; in tests it is in the middle, always.
        random_crop_scale: in training, the cut is a part of the image, resized: its area is a share in this range.
        flip: in training, images are mirrored left to right half of the time.
        bgr: channels are blue, green, red.
        value_range: the greatest value before the mean is subtracted, 1 or 255.
        mean: subtracted per channel, in the order of the channels; by default what the trunk's weights want.
        std: divided by, per channel.
    """

    resize: int | None = Field(None, ge=1)
    crop: int | None = Field(None, ge=1)
    squash: bool = False
    random_crop: bool = False
    random_crop_scale: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    flip: bool = False
    bgr: bool = False
    value_range: Literal[1, 255] = 1
    mean: Annotated[list[float], Field(min_length=1, max_length=3)] | None = None
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1, max_length=3)] | None = None

    @model_validator(mode="after")
    def _settings_fit(self) -> ImagesTable:
        if (self.mean is None) != (self.std is None) or len(self.mean or []) != len(self.std or []):
            raise ValueError(
                "mean and std go together, a value of each per channel; std = [1, 1, 1] divides by nothing"
            )
        if len(self.mean or [0]) == 2:
            raise ValueError("mean and std have one value, or three")
        if self.value_range == 255 and self.mean is None:
            raise ValueError("value_range = 255 goes with the mean and std of such values")
        if self.resize is not None and self.crop is not None and self.resize < self.crop:
            raise ValueError(f"resize ({self.resize}) must be at least crop ({self.crop})")
        low, high = self.random_crop_scale or (1, 1)
        if not 0 < low <= high <= 1:
            raise ValueError("random_crop_scale is a range of areas above 0 and up to 1, smaller first")
        if self.random_crop and self.random_crop_scale is not None:
            raise ValueError(
                "random_crop cuts a square in its size, random_crop_scale resizes what it cuts; leave out one"
            )
        return self


class PseudoTable(Table):
    """``[data.pseudo]``: how training images are clustered before each epoch, so that clusters are their labels.

    Args:
        clusters: how many k-means finds.
        features: what is clustered, normalized: the ``"embedder"``'s output or the ``"trunk"``'s.
        batch_size: the least and the greatest, between which each epoch's is drawn, in place of the sampler's; by
            multiples of the sampler's ``m``, where it has one. None leaves the sampler's.
    """

    clusters: int = Field(100, ge=2)
    features: Literal["embedder", "trunk"] = "embedder"
    batch_size: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="after")
    def _smaller_first(self) -> PseudoTable:
        if self.batch_size is not None and self.batch_size[0] > self.batch_size[1]:
            raise ValueError(f"found batch_size = {self.batch_size}; wanted the smaller first")
        return self


class DataTable(NamedTable):
    """``[data]``: the data set, its options, its images, and ``[data.augment]``, settings of ``build_transforms``.

    ``labels = "clusters"`` trains without the training images' labels, on clusters as ``[data.pseudo]`` says.
    """

    workers: int = Field(0, ge=0)
    cache: Literal["none", "memory", "disk"] = "none"
    unreadable: Literal["stop", "skip"] = "stop"
    augment: dict[str, Any] = {}
    images: ImagesTable = ImagesTable()
    labels: Literal["given", "clusters"] = "given"
    pseudo: PseudoTable | None = None

    @model_validator(mode="after")
    def _clusters_have_settings(self) -> DataTable:
        if self.labels == "clusters":
            self.pseudo = self.pseudo or PseudoTable()
        elif self.pseudo is not None:
            raise ValueError("pseudo goes with labels = 'clusters'; add that, or leave [data.pseudo] out")
        return self

    @model_validator(mode="after")
    def _one_cut(self) -> DataTable:
        if self.augment.get("random_crop") and (self.images.random_crop or self.images.random_crop_scale):
            raise ValueError(
                "[data.images] and [data.augment] both say how images are cut; leave out augment.random_crop"
            )
        return self


class ModelTable(Table):
    """``[model]``: a trunk from images to features, and an embedder from features to embeddings.

    With ``embedder = "none"`` the features are the embeddings, and ``embedding_size`` is their length.
    """

    trunk: Annotated[NamedTable, BeforeValidator(_named)]
    embedding_size: int = Field(64, ge=1)
    hidden_sizes: list[Annotated[int, Field(ge=1)]] = []
    embedder: Literal["linear", "none"] = "linear"
    freeze_batch_norm: bool = False

    @model_validator(mode="after")
    def _nothing_hidden(self) -> ModelTable:
        if self.embedder == "none" and self.hidden_sizes:
            raise ValueError("hidden_sizes are of an embedder, and embedder = 'none'; leave one of the two out")
        return self


class OptimizerTable(NamedTable):
    """``[optimizer]``: a torch optimizer with its options; the embedder's learning rate is ``lr * head_lr_factor``.

    ``scheduled``, of ``[loss.optimizer]``: the schedule applies to the loss's own parameters too.
    """

    name: str = "adam"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    head_lr_factor: float = Field(1.0, gt=0)
    scheduled: bool = False


class RegularizerTable(NamedTable):
    """``[loss.regularizer]``: a regularizer, labeled or not, added to the loss with a weight."""

    weight: float = 1.0


class MemoryTable(Table):
    """``[loss.memory]``: a :class:`pml_ext.CrossBatchMemory` with its size, used from an epoch on."""

    size: int = Field(ge=1)
    start_epoch: int = Field(1, ge=1)


class LossTable(NamedTable):
    """``[loss]``: the loss, its miner, regularizer and memory, and how its own parameters are trained."""

    miner: Annotated[NamedTable, BeforeValidator(_named)] | None = None
    regularizer: Annotated[RegularizerTable, BeforeValidator(_named)] | None = None
    memory: MemoryTable | None = None
    optimizer: dict[str, Any] = {}


class SamplerTable(NamedTable):
    """``[sampler]``: how batches are composed; an epoch has ``iterations`` of them, or as many as one pass gives."""

    name: str = SHUFFLE
    batch_size: int = Field(128, ge=2)
    iterations: int | None = Field(None, ge=1)


class StageTable(Table):
    """``[[stages]]``: epochs with another loss (and sampler), before the recipe's own."""

    epochs: int = Field(ge=1)
    loss: LossTable
    sampler: SamplerTable | None = None


class ScheduleTable(Table):
    """``[schedule]``: the number of epochs, all stages together, and how the learning rate falls."""

    epochs: int = Field(ge=1)
    name: Literal["constant", "multi-step", "cosine"] = "constant"
    milestones: list[Annotated[int, Field(ge=1)]] = []
    gamma: float = Field(0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _milestones_fit(self) -> ScheduleTable:
        if (self.name == "multi-step") != bool(self.milestones):
            raise ValueError("milestones (epochs) go with name = 'multi-step', and with it alone")
        return self


class EngineTable(Table):
    """``[engine]``: how a training step is computed.

    Args:
        precision: of the network, forward and backward; the loss is always computed in full precision. ``"float16"``
            scales the loss and leaves out steps whose gradients overflow.
        micro_batch: how many images trunk and embedder get at a time. The loss sees the whole batch, and gradients are
            its own; the network runs twice forward, and holds one micro-batch. None for the whole batch at a time. Not
            with ``compile``.
        compile: trunk and embedder are compiled by ``torch.compile``, which takes up to minutes before the first step.
        channels_last: images and convolutions lie in memory with the channels last.
        clip_gradient: the greatest norm of the gradients of trunk and embedder together; the loss's own parameters do
            not count and are not clipped. None leaves gradients as they are.
        checkpoint_minutes: after how many minutes a checkpoint is written inside of an epoch, again and again; a run
            that is killed then goes on from there. None writes one at the end of each epoch alone.
    """

    precision: Precision = "float32"
    micro_batch: int | None = Field(None, ge=1)
    compile: bool = False
    channels_last: bool = False
    clip_gradient: float | None = Field(None, gt=0)
    checkpoint_minutes: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _random_numbers_of_the_batch(self) -> EngineTable:
        if self.micro_batch is not None and self.compile:
            raise ValueError(
                "micro_batch draws the random numbers of the whole batch, which compiled networks draw by "
                "themselves; leave out compile or micro_batch"
            )
        return self


class EvaluationTable(Table):
    """``[evaluation]``: what is measured, and how the tested epoch is chosen.

    Args:
        recall_at: every K of ``recall_at_K``, 1 among them.
        precision_at: every K of ``precision_at_K``, 1 among them.
        clusters_per_class: every c for which k-means finds c clusters per class, 1 among them.
        lone_queries: a query whose class has no other image is a ``"miss"`` in ``recall_at_K``, or is left out.
        protocols: what else is measured. ``"nearest-class-mean"``: gallery images, or half of each class's test images,
            give the means of the classes, and the others are classified by the nearest (``ncm_top_1``, ``ncm_top_5``);
            ``"zero-shot"``: the means of the tested classes are estimated from the means of related training classes,
            in a data set whose classes have parents (``zero_shot_top_1``, ``zero_shot_top_5``).
        baselines: whether raw pixels and the untrained network are tested too.
        training_images: how many training images are tested at most, beside the test images; a sample by class where
            there are more, none for 0.
        shortlist: the learned metric is tested among this number of nearest images, too.
        batch_size: images per forward pass at most; fewer on a CPU where images are large.
        test_every: every such number of epochs, and after the last, the test images are tested for a curve in the
            report, which chooses nothing; 0 for no curve.
        validation: the share of the training classes that are held out to choose the epoch by.
        held_out: which: ``"drawn"`` by the seed, or the ``"last"`` in the order of labels.
        select: the metric to choose the epoch by; None tests the last epoch.
        select_on: what ``select`` is measured on: the held-out classes (``"validation"``), or the test images
            themselves (``"test"``), as some programs of papers do, whose numbers are too good; the report says so.
        every: the epoch is chosen among every such number of epochs and the last.
    """

    recall_at: list[Annotated[int, Field(ge=1)]] = [1, 2, 4, 8]
    precision_at: list[Annotated[int, Field(ge=1)]] = [1]
    clusters_per_class: list[Annotated[int, Field(ge=1)]] = [1]
    lone_queries: Literal["miss", "drop"] = "miss"
    protocols: list[Literal["nearest-class-mean", "zero-shot"]] = []
    baselines: bool = True
    training_images: int = Field(5_000, ge=0)
    shortlist: int | None = Field(None, ge=1)
    batch_size: int = Field(256, ge=1)
    test_every: int = Field(0, ge=0)
    validation: float = Field(0.0, ge=0, lt=1)
    held_out: Literal["drawn", "last"] = "drawn"
    every: int = Field(1, ge=1)
    select: str | None = None
    select_on: Literal["validation", "test"] = "validation"

    @model_validator(mode="after")
    def _selection_needs_images(self) -> EvaluationTable:
        if self.select_on == "test":
            if self.select is None:
                raise ValueError("select_on = 'test' goes with select, a metric to choose the epoch by; add it")
            if self.validation:
                raise ValueError(
                    f"found validation = {self.validation}, but the epoch is chosen by the test images "
                    "(select_on = 'test'); leave one of the two out"
                )
        elif (self.select is None) != (self.validation == 0):
            raise ValueError(
                "select (a metric to choose the epoch by) goes with validation (the share of training classes to hold "
                "out for that), for example validation = 0.2, select = 'map_at_r'"
            )
        for key in ("recall_at", "precision_at", "clusters_per_class"):
            if 1 not in getattr(self, key):
                raise ValueError(f"{key} includes 1, which every run reports")
        return self


class PaperTable(BaseModel):
    """``[paper]``: where the settings come from and what the paper reports.

    Args:
        table: a table of a paper whose file is registered, ``"cbml/7"``, or any text.
        row: what the paper calls the row, or the rows, of the table that the recipe trains; or texts of its heads,
            ``{ Backbone = "ResNet-50", Methods = "CBML" }``.
        column: the heading of the columns to quote, where it does not follow from the data set.
        note: what is said of it; other keys stand as they are.
    """

    model_config = ConfigDict(extra="allow")

    table: str = ""
    row: str | list[str] | dict[str, str] = []
    column: str = ""
    note: str = ""


class Recipe(Table):
    """A validated recipe.

    Args:
        description: one line on what it is for.
        data: the data set and its augmentation.
        model: trunk and embedder.
        loss: the loss with what belongs to it.
        sampler: how batches are composed.
        stages: epochs with other losses, before the recipe's own.
        optimizer: of the networks.
        schedule: epochs and learning rate.
        engine: how a training step is computed.
        evaluation: what is measured.
        paper: where the settings come from.
    """

    description: str = ""
    data: DataTable
    model: ModelTable
    loss: LossTable
    sampler: SamplerTable = SamplerTable()
    stages: list[StageTable] = []
    optimizer: OptimizerTable = OptimizerTable()
    schedule: ScheduleTable
    engine: EngineTable = EngineTable()
    evaluation: EvaluationTable = EvaluationTable()
    paper: PaperTable | None = None

    @model_validator(mode="after")
    def _stages_fit(self) -> Recipe:
        warm = sum(stage.epochs for stage in self.stages)
        if warm >= self.schedule.epochs:
            raise ValueError(f"the stages take {warm} epochs, so schedule.epochs must be more than that")
        if self.data.labels == "clusters" and self.evaluation.validation:
            raise ValueError(
                "evaluation.validation holds out classes by their labels, which a run with data.labels = "
                "'clusters' does not look at; leave it out"
            )
        return self

    def all_stages(self) -> list[StageTable]:
        """The stages with the recipe's own loss as the last, every sampler filled in."""
        warm = sum(stage.epochs for stage in self.stages)
        own = StageTable(epochs=self.schedule.epochs - warm, loss=self.loss, sampler=self.sampler)
        return [stage.model_copy(update={"sampler": stage.sampler or self.sampler}) for stage in self.stages] + [own]

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain tables, defaults included, fit for TOML."""
        return typing.cast("dict[str, Any]", without_none(self.model_dump()))

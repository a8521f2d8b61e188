"""Keys, types and defaults of a recipe's tables."""

import os
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pml_ext import registry
from pml_ext.errors import ConfigError, needs_extra, unknown

with needs_extra("train", "a recipe"):
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Discriminator,
        Field,
        Tag,
        TypeAdapter,
        ValidationError,
        model_validator,
    )

SHUFFLE = "shuffle"  # name of the sampler that shuffles all images
FITTED_EMBEDDERS = ("pca", "within-class")  # in closed form, not trained
IDENTITY = "identity"  # name of the trunk of vectors
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "sgd": "SGD"}  # of torch.optim
PROTOCOLS = {"nearest-class-mean": "ncm", "zero-shot": "zero_shot"}  # and the prefixes of their metrics
TOP = (1, 5)
RELATIONS = ("shared-label", "hierarchy", "near", "negatives-only")  # names in pml_ext.relations.RELATIONS
MOST = 10**9  # of any count: products of two fit into 64 bits
Count = Annotated[int, Field(ge=1, le=MOST)]
Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
NO_SETTINGS = ("description", "paper", "track", "origin", "tune")  # keys of a recipe that are not tables of settings


class Table(BaseModel):
    """A table of a recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, tables: Any) -> Any:
        if isinstance(tables, dict) and cls.model_config["extra"] == "forbid":
            for key in tables:
                if key not in cls.model_fields:
                    raise ConfigError(unknown_key("key", key, cls.model_fields))
        return tables

    def changed(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that differ from their defaults."""
        return [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]


def _refuse(*problems: tuple[bool, str, str]) -> None:
    """Raise ConfigError for the first problem; each is a condition, a key, and a text."""
    for is_there, key, text in problems:
        if is_there:
            raise ConfigError(text, key=key)


class NamedTable(Table):
    """A table with a ``name``; further keys are settings of what it names."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str  # of a component, data set or optimizer; its settings are further keys

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the named component, data set or trunk."""
        return dict(self.model_extra or {})


_name_alone = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
_listed = BeforeValidator(lambda value: value if isinstance(value, list) else [value])


class ImagesTable(Table):
    """``[data.images]``: preprocessing of color images."""

    resize: Count | None = None  # shorter side in pixels before cropping; by default 256/224 of the crop
    crop: Count | None = None  # size of the network's input; by default the data set's image size
    interpolation: Literal["bilinear", "bicubic"] | None = None  # of resizing; by default the trunk's own, or bilinear
    squash: bool = False  # resize to squares, whatever the aspect ratio
    random_crop: bool = False  # in training, crop at a random place; tests crop the center
    # range of the area of random crops, as shares of the image
    random_crop_scale: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    flip: bool = False  # in training, mirror half of the images left to right
    bgr: bool = False  # the order of the channels is blue, green, red
    value_range: Literal[1, 255] = 1  # greatest value before the mean is subtracted
    mean: list[float] | None = None  # mean of each channel; by default that of the pretrained weights
    std: list[Annotated[float, Field(gt=0)]] | None = None  # standard deviation of each channel; goes with mean

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        means = len(self.mean or [])
        area = self.random_crop_scale
        _refuse(
            (
                means != len(self.std or []) or means not in (0, 1, 3),
                "",
                "mean and std go together, one value or three each; std = [1, 1, 1] divides by nothing",
            ),
            (
                self.value_range == 255 and self.mean is None,
                "",
                "value_range = 255 goes with the mean and std of such values",
            ),
            (area is not None and area[0] > area[1], "", "random_crop_scale is a range of areas, smaller first"),
            (
                self.resize is not None and self.crop is not None and self.resize < self.crop,
                "",
                f"resize ({self.resize}) must be at least crop ({self.crop})",
            ),
            (
                self.random_crop and area is not None,
                "",
                "random_crop and random_crop_scale both set how images are cut; leave out one",
            ),
        )
        return self


class PseudoTable(Table):
    """``[data.pseudo]``: clusters of the training images as labels, renewed before each epoch."""

    clusters: int = Field(100, ge=2, le=MOST)  # number of clusters of k-means
    features: Literal["embedder", "trunk"] = "embedder"  # the outputs that are normalized and clustered
    # range from which each epoch draws its batch size, in multiples of the sampler's m; by default the sampler's size
    batch_size: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=2, max_length=2)] | None = None


def transform_tables(value: Any, key: str) -> list[NamedTable]:
    """Return the tables of a list of transforms; a name alone becomes a table.

    ConfigError with the list's ``key`` and the place in the list.
    """
    adapter = TypeAdapter(Annotated[list[Annotated[NamedTable, _name_alone]], _listed])
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise wrong_setting(error).inside(key) from None


def _with_tables_of_transforms(augment: dict[str, Any]) -> dict[str, Any]:
    if "transforms" not in augment:
        return augment
    tables = transform_tables(augment["transforms"], "transforms")
    return augment | {"transforms": [table.model_dump() for table in tables]}


class DataTable(NamedTable):
    """``[data]``: the data set, its options, images and augmentation."""

    workers: int = Field(0, ge=0, le=MOST)  # processes that read images; 0 reads them in the process of the run
    cache: Literal["none", "memory"] = "none"  # whether decoded images are kept in memory
    unreadable: Literal["stop", "skip"] = "stop"  # what happens at a damaged image: an error, or a warning
    # of training images: shift in pixels, random_crop, flip, transforms (pml-ext list transforms)
    augment: Annotated[dict[str, Any], AfterValidator(_with_tables_of_transforms)] = {}
    images: ImagesTable = ImagesTable()  # preprocessing of color images
    # labels of training images: the given classes, clusters ([data.pseudo]), or each image as its own class
    labels: Literal["given", "clusters", "instance"] = "given"
    pseudo: PseudoTable | None = None  # clustering for labels = "clusters"
    views: Count = 1  # views of each image in a training batch, augmented independently
    relation: Annotated[NamedTable, _name_alone] | None = None  # replaces equality of classes: shared-label, ...

    @property
    def listed(self) -> Literal["pairs", "triplets"] | None:
        """What the data list in place of labels, or None."""
        kind, _, path = self.name.partition(":")
        if path and kind == "pairs":
            return "pairs"
        return "triplets" if path and kind == "triplets" else None

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if self.labels == "clusters":
            self.pseudo = self.pseudo or PseudoTable()
        sizes = (self.pseudo and self.pseudo.batch_size) or [2, 2]
        relation = RELATIONS[0] if self.relation is None else self.relation.name
        cuts = self.images.random_crop or self.images.random_crop_scale
        _refuse(
            (sizes[0] > sizes[1], "pseudo.batch_size", f"found {sizes}; wanted the smaller first"),
            (
                self.pseudo is not None and self.labels != "clusters",
                "",
                "pseudo goes with labels = 'clusters'; add that, or leave [data.pseudo] out",
            ),
            (relation not in RELATIONS, "relation", unknown("relation", relation, RELATIONS)),
            (
                self.relation is not None and self.labels != "given",
                "relation",
                f"it needs the names of the data's classes, which labels = {self.labels!r} replaces",
            ),
            (
                self.labels == "instance" and self.views < 2,
                "views",
                (
                    f"found {self.views}; labels = 'instance' needs 2 or more, because the only positive pairs "
                    "are views of one image"
                ),
            ),
            (
                bool(self.augment.get("random_crop") and cuts),
                "",
                "images and augment both set how images are cut; leave out augment.random_crop",
            ),
        )
        return self


class CutTable(Table):
    """``freeze = {until = "BLOCK"}``: freeze the layers before a block."""

    until: Text  # name of the first block that trains, such as "blocks.5"; "head": the head alone trains
    precision: Literal["float16", "float32"] = "float16"  # precision of the cached activations
    gigabytes: float = Field(8.0, gt=0)  # greatest size of that cache


_FORMS = ("word", "names", "cut")  # of a freeze, as pydantic places its errors


def _kind_of_freeze(value: Any) -> str:
    if isinstance(value, (dict, CutTable)):
        return "cut"
    return "names" if isinstance(value, list) else "word"


Freeze = Annotated[
    Annotated[Literal["none", "trunk"], Tag("word")]
    | Annotated[list[str], Tag("names")]
    | Annotated[CutTable, Tag("cut")],
    Discriminator(_kind_of_freeze),
]


def frozen_patterns(freeze: Freeze) -> list[str]:
    """Return the patterns of frozen layers; none for a cut."""
    if isinstance(freeze, list):
        return freeze
    return ["*"] if freeze == "trunk" else []


def cut_of(freeze: Freeze) -> CutTable | None:
    """Return the cut of ``freeze``, or None."""
    return freeze if isinstance(freeze, CutTable) else None


class LoraTable(Table):
    """``[model] lora``: low-rank adapters, the only trained part of the trunk (extra peft)."""

    rank: Count = 8  # rank of the two matrices of an adapter
    targets: list[str]  # ends of the names of layers, such as "qkv", "query"


class ModelTable(Table):
    """``[model]``: a trunk from images to features, and an embedder from features to embeddings."""

    trunk: Annotated[NamedTable, _name_alone]  # the backbone: a name, or a table of the name and its options
    embedding_size: Count = 64  # length of an embedding
    hidden_sizes: list[Count] = []  # hidden layers of the embedder
    # "mlp": one hidden layer of 512 by default; "pca", "within-class": whitening in closed form, not trained;
    # "none": the features are the embeddings
    embedder: Literal["linear", "mlp", "pca", "within-class", "none"] = "linear"
    # shrinkage of whitening towards the mean variance; default 0 for "pca", else 0.6; "auto": by held-out classes
    shrinkage: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = None
    start: Literal["random", "within-class"] = "random"  # initial weights of a linear embedder
    refit: Literal["none", "within-class"] = "none"  # closed form that replaces the trained embedder
    norm: Literal["none", "batch", "layer"] = "none"  # normalization of the input of each embedder layer
    dropout: float = Field(0.0, ge=0, lt=1)  # dropout on the input of each embedder layer
    # "trunk": features are computed once and cached; a list: patterns of layer names; a table: layers before a block,
    # whose activations are computed once and cached
    freeze: Freeze = "none"
    views: Count = 1  # cached views of each image, with freeze = "trunk" or a block; above 1 they are augmented
    lora: LoraTable | None = None  # low-rank adapters, the only trained part of the trunk
    freeze_batch_norm: bool = False  # keep the statistics of batch norms
    init: str | None = None  # folder of a run whose weights the training starts from

    @model_validator(mode="after")
    def _trunk_has_weights(self) -> Self:
        """Fill in weights that the trunk's name implies."""
        library, _, model = self.trunk.name.partition("/")
        if "weights" in self.trunk.settings:
            return self
        if library == "timm" and "." in model:  # as timm names a trained model
            name, _, tag = self.trunk.name.partition(".")
            self.trunk = NamedTable.model_validate({**self.trunk.settings, "name": name, "weights": tag})
        if library == "hf" and os.path.isdir(model):  # a saved model
            self.trunk = NamedTable.model_validate({**self.trunk.model_dump(), "weights": "DEFAULT"})
        return self

    @property
    def takes_vectors(self) -> bool:
        """Whether the network is a head on vectors."""
        return self.trunk.name == IDENTITY

    @model_validator(mode="after")
    def _vectors_have_no_trunk(self) -> Self:
        if not self.takes_vectors:
            return self
        unused = ["freeze"] if self.freeze not in ("none", "trunk") else []
        unused += self.changed(("views", "lora", "freeze_batch_norm"))
        if unused:
            raise ConfigError("it is for trunks of images, but vectors go straight into the embedder", key=unused[0])
        self.freeze = "trunk"
        return self

    @property
    def trains_embedder(self) -> bool:
        """Whether training changes the embedder."""
        return self.embedder in ("linear", "mlp")

    @property
    def hidden_layers(self) -> list[int]:
        """The sizes of the embedder's hidden layers."""
        return [512] if self.embedder == "mlp" and not self.hidden_sizes else self.hidden_sizes

    @model_validator(mode="after")
    def _head_fits(self) -> Self:
        of_training = self.changed(("hidden_sizes", "norm", "dropout", "start", "refit"))
        keeps_features = self.freeze == "trunk" or cut_of(self.freeze) is not None
        _refuse(
            (
                self.lora is not None and self.freeze != "none",
                "",
                "lora trains adapters of a trunk that is frozen otherwise; leave out freeze",
            ),
            *(
                (not self.trains_embedder, key, f"it is for a trained embedder, not for {self.embedder!r}")
                for key in of_training
            ),
            (
                self.freeze != "trunk" and self.embedder in FITTED_EMBEDDERS,
                "embedder",
                f"{self.embedder!r} goes with freeze = 'trunk', whose features are kept; after training, refit = "
                "'within-class'",
            ),
            *self._problems_of_whitening(),
            (
                self.init is not None and keeps_features and not self.takes_vectors,
                "init",
                "features are cached for pretrained trunks only, not for the weights of a run",
            ),
        )
        return self

    def _problems_of_whitening(self) -> Iterator[tuple[bool, str, str]]:
        is_linear = self.embedder == "linear" and not self.hidden_sizes and self.norm == "none" and not self.dropout
        is_within = "within-class" in (self.embedder, self.start, self.refit)
        for key in ("start", "refit"):
            is_wrong = getattr(self, key) == "within-class" and not is_linear
            yield is_wrong, key, "it is for embedder = 'linear' without hidden_sizes, norm and dropout"
        yield (
            self.refit != "none" and self.freeze == "trunk",
            "refit",
            (
                "the trunk is frozen, so refit would undo all training; set embedder = 'within-class', which "
                "needs no training"
            ),
        )
        yield (
            self.start != "random" and self.init is not None,
            "start",
            "the weights of the run that init names would be replaced; leave one out",
        )
        yield (
            self.shrinkage is not None and not is_within and self.embedder != "pca",
            "shrinkage",
            "it needs 'pca' or 'within-class' as embedder, or 'within-class' as start or refit",
        )
        yield (
            self.shrinkage == "auto" and not is_within,
            "shrinkage",
            "'auto' holds out classes, which 'pca' does not see; give a number",
        )


class OptimizerTable(NamedTable):
    """``[optimizer]``: a torch optimizer with its options."""

    name: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"  # torch's optimizer; its options are keys too
    lr: float = Field(1e-3, gt=0)  # learning rate
    weight_decay: float = Field(0.0, ge=0)  # weight decay
    head_lr_factor: float = Field(1.0, gt=0)  # factor of the embedder's learning rate
    scheduled: bool = False  # in [loss.optimizer]: whether the schedule applies to the loss's own parameters

    @property
    def optimizer(self) -> Any:
        """The class of torch."""
        import torch

        return getattr(torch.optim, _OPTIMIZERS[self.name])


class RegularizerTable(NamedTable):
    """``[loss.regularizer]``: a regularizer that is added to the loss with a weight."""

    weight: float = 1.0  # factor of the regularizer


class MemoryTable(Table):
    """``[loss.memory]``: a :class:`pml_ext.CrossBatchMemory`."""

    size: Count  # number of past embeddings
    start_epoch: Count = 1  # first epoch that uses them


class LossTable(NamedTable):
    """``[loss]``: the loss, its miner, regularizer, memory, and the optimizer of its parameters."""

    miner: Annotated[NamedTable, _name_alone] | None = None  # selects pairs or triplets
    regularizer: Annotated[RegularizerTable, _name_alone] | None = None  # term that is added to the loss
    memory: MemoryTable | None = None  # embeddings of past batches, as references
    relation: Literal["data", "none"] = "data"  # "none": loss and miner ignore [data] relation
    nested: list[Count] = []  # numbers of dimensions that are trained, too; the last is model.embedding_size
    optimizer: dict[str, Any] = {}  # changes of [optimizer] for proxies and other parameters of the loss


class SamplerTable(NamedTable):
    """``[sampler]``: composition of batches."""

    name: str = SHUFFLE  # "shuffle", or a sampler; its settings are keys too
    batch_size: int = Field(128, ge=2, le=MOST)  # images of a batch, over all processes
    iterations: Count | None = None  # batches of an epoch; by default one pass over the images


class StageTable(Table):
    """``[[stages]]``: epochs with another loss, before the recipe's own."""

    epochs: Count  # length of the stage
    loss: LossTable  # loss of the stage
    sampler: SamplerTable | None = None  # by default the recipe's own
    freeze: Freeze = "none"  # parts of the trunk to freeze in addition to [model] freeze
    lr_factor: float = Field(1.0, gt=0)  # factor of the network's learning rates


class ScheduleTable(Table):
    """``[schedule]``: epochs, warm-up and decay of the learning rate."""

    epochs: Count  # epochs of the run, including stages
    name: Literal["constant", "multi-step", "cosine"] = "constant"  # how the learning rate decays
    milestones: list[Count] = []  # epochs after which "multi-step" multiplies the learning rate by gamma
    gamma: float = Field(0.1, gt=0, le=1)  # factor of "multi-step"
    warmup: float = Field(0.0, ge=0)  # epochs in which the learning rate rises linearly; may be a fraction

    @model_validator(mode="after")
    def _milestones_fit(self) -> Self:
        _refuse(
            (
                (self.name == "multi-step") != bool(self.milestones),
                "",
                "milestones (epochs) go with name = 'multi-step', and with it alone",
            ),
            (self.warmup > self.epochs, "warmup", f"found {self.warmup:g} epochs, but the run has {self.epochs}"),
        )
        return self


class EngineTable(Table):
    """``[engine]``: computation of a training step."""

    # precision of the network; the loss is always in full precision; float16 skips steps that overflow
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    micro_batch: Count | None = None  # images per forward pass; the loss sees the whole batch
    compile: bool = False  # torch.compile, which can take minutes before the first step
    channels_last: bool | None = None  # memory format of convolutions; by default only on a CPU
    deterministic: bool = False  # deterministic operators: a repeated or resumed run on a GPU gives the same result
    clip_gradient: float | None = Field(None, gt=0)  # greatest norm of the gradients
    checkpoint_minutes: float | None = Field(None, gt=0)  # interval of checkpoints within an epoch


class EvaluationTable(Table):
    """``[evaluation]``: metrics, and the choice of the tested epoch; see docs/recipes.md."""

    recall_at: list[Count] = [1, 2, 4, 8]  # K of Recall@K
    precision_at: list[Count] = [1]  # K of Precision@K
    ndcg_at: list[Count] = []  # K of NDCG@K
    clusters_per_class: list[Count] = [1]  # clusters of k-means per class, for NMI, F1 and purity
    verification: Count | None = None  # pairs of equal and of different classes, as many each, to verify
    lone_queries: Literal["miss", "drop"] = "drop"  # how Recall@K counts queries without another image of their class
    protocols: list[Literal["nearest-class-mean", "zero-shot"]] = []  # classification by class means
    baselines: bool = True  # also test raw pixels and the untrained network
    figures: Literal["all", "few"] = "all"  # "few": losses, similarities and nearest neighbors, without t-SNE
    training_images: int = Field(5_000, ge=0, le=MOST)  # tested training images, sampled by class
    shortlist: Count | None = None  # number of nearest images that the learned metric re-ranks
    batch_size: Count = 256  # most images in a forward pass; fewer if large images meet a CPU
    test_every: int = Field(0, ge=0, le=MOST)  # epochs between tests that draw a curve without selecting; 0 for none
    validation: float = Field(0.0, ge=0, lt=1)  # share of the training classes held out to select the epoch
    held_out: Literal["drawn", "last"] = "drawn"  # drawn by the seed, or the last by label
    fold: Count | None = None  # hold out this one of 1/validation disjoint parts, the same for all seeds
    validation_trains: bool = False  # also train on the held-out classes, as some papers' code does
    every: Count = 1  # epochs between candidates for selection; the last is always one
    select: str | None = None  # metric that selects the epoch; by default the last is tested
    select_on: Literal["validation", "test", "split"] = "validation"  # "split": the validation images of the data

    @model_validator(mode="after")
    def _selection_has_images(self) -> Self:
        if self.select_on in ("test", "split"):
            fits = self.select is not None and self.validation == 0
        else:
            fits = (self.select is not None) == (self.validation > 0)
        lists = ("recall_at", "precision_at", "clusters_per_class")
        _refuse(
            (
                not fits,
                "",
                (
                    "select, the metric that chooses the epoch, goes with validation (a share of the training "
                    "classes) or select_on = 'test' or 'split'; for example validation = 0.2, select = 'map_at_r'"
                ),
            ),
            (
                self.validation_trains and not self.validation,
                "",
                "validation_trains goes with validation, the share of the training classes that is held out",
            ),
            (
                self.fold is not None and (not self.validation or self.fold > round(1 / self.validation)),
                "",
                "fold goes with validation, and counts its parts: 1 to 4 for validation = 0.25",
            ),
            *((1 not in getattr(self, key), "", f"{key} includes 1, which every run reports") for key in lists),
        )
        return self

    @property
    def validated_on(self) -> str:
        """A description of the validation images."""
        if self.select_on == "split":
            return "the data set's validation images"
        if self.validation_trains:
            return "training classes, which trained too"
        return "held-out training classes"

    def metric_names(self) -> list[str]:
        """Return the names of the metrics that a run reports."""
        from pml_ext.evaluation.metrics import metrics_of

        metrics = metrics_of(
            self.recall_at,
            self.precision_at,
            self.clusters_per_class,
            self.ndcg_at,
            verification=self.verification is not None,
        )
        names = [metric.name for metric in metrics if metric.in_runs]
        names += registry.values("metric")
        for protocol in self.protocols:
            names += [f"{PROTOCOLS[protocol]}_top_{k}" for k in TOP]
        return names


class PaperTable(BaseModel):
    """``[paper]``: source of the settings; other keys are shown unchanged."""

    model_config = ConfigDict(extra="allow")

    table: str = ""  # table of a registered paper ("cbml/7"), or any text
    row: str | list[str] | dict[str, str] = []  # names of the rows, or texts by their heads
    column: str = ""  # heading of the columns to quote; by default by data set
    note: str = ""  # differences from the paper


class TuneTable(Table):
    """A range of ``[tune]``: the values of a key that ``pml-ext compare --tune`` tries."""

    low: int | float = 0  # least value
    high: int | float = 0  # greatest value
    log: bool = False  # draw on a logarithmic scale
    choices: list[bool | int | float | str] = []  # instead of low and high

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        _refuse(
            (
                bool(self.choices) == (self.low < self.high),
                "",
                f"found low = {self.low}, high = {self.high}; wanted the smaller first, or choices alone",
            ),
            (self.log and self.low <= 0, "", f"found low = {self.low} with log = true; wanted more than 0"),
        )
        return self


class Recipe(Table):
    """A validated recipe."""

    description: str = ""  # one line for pml-ext list
    data: DataTable  # data set, preprocessing, augmentation
    model: ModelTable  # trunk and embedder
    loss: LossTable  # loss, miner, regularizer, memory
    sampler: SamplerTable = SamplerTable()  # composition of batches
    stages: list[StageTable] = []  # training before the recipe's own loss
    optimizer: OptimizerTable = OptimizerTable()  # optimizer of the network
    schedule: ScheduleTable  # epochs and learning rate
    engine: EngineTable = EngineTable()  # precision, memory, checkpoints
    evaluation: EvaluationTable = EvaluationTable()  # metrics, and the epoch that is tested
    # trackers: "tensorboard", "wandb", "mlflow", "trackio", or a plugin's
    track: Annotated[list[Annotated[NamedTable, _name_alone]], _listed] = [NamedTable(name="tensorboard")]
    paper: PaperTable | None = None  # the paper's results to compare with

    origin: dict[str, Text] = Field({}, exclude=True)  # source of settings by key or table: paper, program or ours
    tune: dict[str, TuneTable] = Field({}, exclude=True)  # ranges by key, for pml-ext compare --tune

    @model_validator(mode="after")
    def _origins_and_ranges_fit(self) -> Self:
        for key in self.origin:
            self._check_key(f"origin.{key}", key)
        for key in self.tune:
            self._check_key(f"tune.{key}", key)
        return self

    def _check_key(self, place: str, key: str) -> None:
        """Raise ConfigError for a key that no table of settings has."""
        tables = {name: field.annotation for name, field in type(self).model_fields.items() if name not in NO_SETTINGS}
        group, _, inner = key.partition(".")
        if group not in tables:
            raise ConfigError(unknown("table", group, tables), key=place)
        table: Any = tables[group]
        if not inner or not isinstance(table, type) or not issubclass(table, Table):
            return
        name = inner.partition(".")[0]
        if name and table.model_config["extra"] == "forbid" and name not in table.model_fields:
            raise ConfigError(f"{unknown(f'key of [{group}]', name, table.model_fields)}", key=place)

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        epochs = self.schedule.epochs
        stage_epochs = sum(stage.epochs for stage in self.stages)
        _refuse(
            (
                stage_epochs >= epochs,
                "schedule.epochs",
                f"found {epochs}, but the stages alone have {stage_epochs} epochs; set more",
            ),
            *self._problems_of_cuts(),
            (
                self.data.labels != "given" and bool(self.evaluation.validation),
                "evaluation.validation",
                f"it holds out the data's classes, which labels = {self.data.labels!r} replaces",
            ),
            (
                self.evaluation.verification is not None and self.data.relation is not None,
                "evaluation.verification",
                "it needs pairs of one class, which data.relation replaces",
            ),
        )
        for stage in self.all_stages():
            _refuse(*self._problems_of_stage(stage))
        return self

    def _problems_of_stage(self, stage: StageTable) -> Iterator[tuple[bool, str, str]]:
        assert stage.sampler is not None
        per_class = stage.sampler.settings.get("m", 1)
        yield (
            self.data.labels == "instance" and stage.sampler.name != SHUFFLE and per_class != 1,
            "sampler.m",
            (
                f"found {per_class!r}, but with labels = 'instance' a class has 1 image; set m = 1, or "
                "sampler.name = 'shuffle'"
            ),
        )
        if stage.loss.memory is None:
            return
        size = stage.loss.memory.size
        start = stage.loss.memory.start_epoch
        batch = stage.sampler.batch_size * self.data.views
        yield (
            self.data.labels == "clusters",
            "loss.memory",
            "it keeps labels of past batches, but clusters change with each epoch",
        )
        yield size < batch, "loss.memory.size", f"found {size}; it holds at least one batch, here {batch}"
        epochs = self.schedule.epochs
        yield start > epochs, "loss.memory.start_epoch", f"found {start}, but the run has {epochs} epochs"

    def _problems_of_cuts(self) -> Iterator[tuple[bool, str, str]]:
        model = self.model
        cuts = [cut_of(stage.freeze) for stage in self.stages]
        keeps_views = model.freeze == "trunk" or cut_of(model.freeze) is not None or any(cuts)
        yield (
            model.views > 1 and not keeps_views,
            "model.views",
            f"{model.views!r} goes with freeze = 'trunk' or a cut, which cache features or activations",
        )
        yield (
            keeps_views and not model.takes_vectors and self.data.views > max(1, model.views),
            "data.views",
            (
                f"found {self.data.views}, but a frozen trunk or a cut caches only model.views = {model.views} "
                f"of each image; set model.views = {self.data.views} or more"
            ),
        )
        yield (
            any(cuts) and (model.freeze != "none" or model.lora is not None or model.init is not None),
            "stages.freeze",
            "a cut of a stage goes without model.freeze, model.lora and model.init",
        )
        first_live = cuts.index(None) if None in cuts else len(cuts)
        yield (
            any(cuts[first_live:]),
            "stages.freeze",
            "activations are cached only before the trunk is trained, so stages with a cut come first",
        )

    def check_effects(self) -> None:
        """Raise ConfigError for settings without effect; earlier runs may have them."""
        tests = self.evaluation
        name = self.schedule.name
        _refuse(
            (
                tests.held_out != "drawn" and not tests.validation,
                "evaluation",
                f"held_out = {tests.held_out!r} goes with validation, the share of the training classes",
            ),
            (
                tests.every > 1 and tests.select is None,
                "evaluation",
                "every goes with select, the metric to choose the epoch by; test_every is for curves",
            ),
            (
                name != "multi-step" and bool(self.schedule.changed(["gamma"])),
                "schedule.gamma",
                f"goes with name = 'multi-step', not with {name!r}; leave it out",
            ),
            (
                not self.model.trains_embedder and self.optimizer.head_lr_factor != 1,
                "optimizer.head_lr_factor",
                f"embedder = {self.model.embedder!r} is not trained; leave it out",
            ),
        )

    def all_stages(self) -> list[StageTable]:
        """Return all stages, with every sampler filled in; the last has the recipe's own loss."""
        earlier = [stage.model_copy(update={"sampler": stage.sampler or self.sampler}) for stage in self.stages]
        epochs = self.schedule.epochs - sum(stage.epochs for stage in self.stages)
        return [*earlier, StageTable(epochs=epochs, loss=self.loss, sampler=self.sampler)]

    def stages_by_prefix(self) -> Iterator[tuple[str, StageTable]]:
        """Yield prefix of keys and stage: ``"stages.0."``, and "" for the recipe's own loss."""
        for number, stage in enumerate(self.all_stages()):
            prefix = f"stages.{number}." if number < len(self.stages) else ""
            yield prefix, stage

    def metric_names(self) -> list[str]:
        """Return the names of the metrics that a run reports."""
        from pml_ext.evaluation.metrics import OF_LISTED

        if self.data.listed is not None:
            return list(OF_LISTED[self.data.listed])
        return self.evaluation.metric_names()

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain TOML tables, with defaults."""
        return self.model_dump(exclude_none=True)


def wrong_setting(error: ValidationError) -> ConfigError:
    """Return the first validation problem as an error with its key."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"] if part not in _FORMS)
    if problem["type"] == "value_error":  # raised by a validator
        found = problem["ctx"]["error"]
        return ConfigError(*found.args, key=found.key).inside(key)
    text = f"found {problem['input']!r}; {problem['msg'][0].lower()}{problem['msg'][1:]}"
    if problem["type"] == "missing":
        text = "missing, and there is no default"
    return ConfigError(text, key=key)


def unknown_key(what: str, key: str, known: Iterable[str]) -> str:
    """Name the tables that have an unknown key, or else the most similar keys."""
    tables = " or ".join(f"[{path}]" for path in _tables_with(Recipe, key))
    return f"no {what} {key!r}; it belongs to {tables}" if tables else unknown(what, key, known)


def _tables_with(table: type[BaseModel], key: str, path: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if key in inner.model_fields:
                yield path + name
            yield from _tables_with(inner, key, f"{path}{name}.")

"""The pretrained trunk of ``fit``: EfficientNet-Lite0, or the one named by ``--trunk``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.nn import Module

from pml_ext.errors import ConfigError
from pml_ext_train.networks import HF, image_size_of, last_blocks, named_trunk, output_size, pretrained_images
from pml_ext_train.recipe import build_trunk, load_recipe, overrides_of, read_tables

from .framing import DEFAULT, SMALL_SIDE, Framing
from .settings import Settings

PRETRAINED = "fit/photographs-pretrained"
BLOCKS_FIRST = "fit/photographs-fine-tuned"
EMBEDDING = 512  # the size of embeddings where blocks are trained, at most
SMALL_NETWORK = "convnet"  # the trunk of the small network, which trains from scratch
OWN_SIDE = 224  # pixels, if the weights do not say
SMALLER = SMALL_SIDE / DEFAULT.side  # a size that takes half the time
MULTIPLE = 32  # of smaller sizes, by which convolutional networks shrink images
FROZEN: Settings = {"model.freeze": "trunk", "model.start": "random", "model.refit": "none"}
_WEIGHTS = {
    None: "its own weights",
    "DEFAULT": "its own weights",
    "random": "random weights",
    "imagenet": "ImageNet weights",
}


@dataclass(frozen=True)
class Trunk:
    """A pretrained trunk: its name in recipes, the framing of its weights, and where it is cut."""

    title: str = "efficientnet-lite0 with ImageNet weights"
    settings: Settings = field(default_factory=dict, hash=False)  # of the recipe; none for that of our recipes
    features: int = 1280
    framing: Framing = DEFAULT
    smaller: int | None = SMALL_SIDE  # pixels; None for a trunk with a fixed size
    last_blocks: str | None = "blocks.5"  # the first block that trains; None for a trunk that cannot be cut
    deeper: str | None = None  # an earlier block, to train from if held-out classes prefer it

    @property
    def name(self) -> str:
        """The name for readers, without the weights."""
        return self.title.partition(" with ")[0]

    def framed(self, side: int, squash: bool) -> Framing:
        """A framing that keeps the share of the middle that the weights saw."""
        ratio = 1.0 if squash or self.framing.squash else self.framing.ratio
        return Framing(side, squash, ratio)

    @property
    def settings_of_blocks(self) -> Settings:
        """Settings of a recipe that trains the last blocks."""
        if not self.settings:
            return {}
        cut = {"until": self.last_blocks or "head"}
        return self.settings | {"model.freeze": cut, "model.embedding_size": min(EMBEDDING, self.features)}

    @property
    def settings_of_fine_tuning(self) -> Settings:
        """Settings of a recipe that trains the last blocks first, and then the whole network.

        If the trunk cannot be cut, the head is trained first.
        """
        if not self.settings:
            return {}
        first, *others = read_tables(BLOCKS_FIRST)["stages"]
        cut = self.settings_of_blocks["model.freeze"]
        return self.settings_of_blocks | {"model.freeze": "none", "stages": [first | {"freeze": cut}, *others]}


LITE0 = Trunk(deeper="blocks.3")
_OURS = {"name": LITE0.name, "weights": "imagenet"}


def trunk_named(text: str) -> Trunk:
    """Load and measure the trunk that ``--trunk`` names; ConfigError if that fails."""
    return trunk_of_table(named_trunk(text))


def trunk_of_table(table: dict[str, Any]) -> Trunk:
    """The trunk of a recipe's table ``[model] trunk``; EfficientNet-Lite0 for a small network."""
    if table == _OURS or table.get("name") == SMALL_NETWORK:
        return LITE0
    settings: Settings = {"model.trunk": dict(table)}
    known = load_recipe(PRETRAINED, overrides_of(settings | FROZEN)).model.trunk
    wanted = pretrained_images(known.name, known.settings)
    side = OWN_SIDE
    if wanted is None and known.name.startswith(HF):
        side = image_size_of(known.name.removeprefix(HF)) or OWN_SIDE
    framing = Framing(side)
    if wanted is not None and wanted.image_size is not None:
        side = wanted.image_size
        shown = wanted.resize or round(side * 256 / 224)
        framing = Framing(side, True) if wanted.squash else Framing(side, ratio=side / shown)
    network = build_trunk(known, 3, side)
    features = output_size(network, 3, side)
    cut = last_blocks(network, 3, side)
    return Trunk(
        title=f"{known.name} with {_text_of(known.settings.get('weights'))}",
        settings=settings,
        features=features,
        framing=framing,
        smaller=_smaller_side(network, side, features),
        last_blocks=None if cut is None else cut.first,
    )


def _smaller_side(network: Module, side: int, features: int) -> int | None:
    """A side of images that takes half the time; None for a trunk with a fixed size."""
    smaller = round(side * SMALLER / MULTIPLE) * MULTIPLE
    if not 0 < smaller < side:
        return None
    try:
        found = output_size(network, 3, smaller)
    except ConfigError:
        return None
    return smaller if found == features else None


def _text_of(weights: Any) -> str:
    return _WEIGHTS.get(weights) or f"the weights {Path(str(weights)).name}"


def check_resumed(folder: Path, table: Any, wanted: Trunk | None) -> None:
    """Raise ConfigError for a run with another pretrained trunk than ``--trunk`` names.

    ``table`` is the trunk in the run's recipe, None for our recipes' own.
    """
    if wanted is None or (isinstance(table, dict) and table.get("name") == SMALL_NETWORK):
        return
    if (table or _OURS) != wanted.settings.get("model.trunk", _OURS):
        raise ConfigError(
            f"{folder} was begun with the trunk {(table or _OURS)['name']}; resume it without --trunk, or choose "
            "another --out"
        )

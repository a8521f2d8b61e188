"""Texts in the space of images: the text encoder of a pair such as CLIP or SigLIP, whose other half is a trunk."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, one_line

from .hf import HF, PROJECTED, load_model, transformers_library
from .trunks import unwrapped_trunk

BATCH = 64  # texts in a forward pass


class CutTextWarning(UserWarning):
    """Warning that a text is longer than its encoder takes, so that its end is left out."""


class TextEncoder:
    """The text encoder of a pair, which gives vectors in the space of the pair's image features."""

    def __init__(self, pair: nn.Module, tokenizer: Any, name: str, device: torch.device) -> None:
        self.pair = pair.to(device).eval()
        self.tokenizer = tokenizer
        self.name = name
        self.device = device
        config: Any = pair.config
        self._vocabulary = int(config.text_config.vocab_size)
        self._most = int(config.text_config.max_position_embeddings)  # tokens of a text
        self._pads_to_most = "siglip" in config.model_type  # which was trained so

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the features of texts, ``[N, D]``, not normalized; warn of those that are cut.

        ConfigError for an empty text, and for a tokenizer of another model.
        """
        for text in texts:
            if not text.strip():
                raise ConfigError("found an empty text; wanted words, for example: --text 'a red car'")
        batches = [self._features_of(list(texts[start : start + BATCH])) for start in range(0, len(texts), BATCH)]
        return torch.cat(batches)

    def _features_of(self, texts: list[str]) -> Tensor:
        for text, ids in zip(texts, self.tokenizer(texts)["input_ids"], strict=True):
            if len(ids) > self._most:
                warnings.warn(
                    f"the text {text[:40]!r}...: its encoder takes {self._most} tokens, and it has {len(ids)}; the "
                    "end is left out",
                    CutTextWarning,
                    stacklevel=4,
                )
        tokens = self.tokenizer(
            texts,
            padding="max_length" if self._pads_to_most else True,
            truncation=True,
            max_length=self._most,
            return_tensors="pt",
        )
        largest = int(tokens["input_ids"].max())
        if largest >= self._vocabulary:
            raise ConfigError(
                f"{self.name}: its tokenizer has the token {largest}, and its text encoder knows {self._vocabulary}; "
                "wanted the tokenizer of the same model, as tokenizer.save_pretrained(FOLDER) writes it"
            )
        arguments = {key: tokens[key].to(self.device) for key in ("input_ids", "attention_mask") if key in tokens}
        features = self.pair.get_text_features(**arguments)  # type: ignore[operator]
        if not isinstance(features, Tensor):  # since transformers 5
            features = features.pooler_output
        return features  # type: ignore[no-any-return]


def text_encoder(table: Mapping[str, Any], trunk: nn.Module, device: torch.device) -> TextEncoder:
    """Return the text encoder of the pair whose image encoder a frozen trunk is.

    Args:
        table: ``[model] trunk`` of a recipe, with ``name``, ``weights`` and ``pool``.
        trunk: the network of that table.
        device: the device that texts are encoded on.

    Raises:
        ConfigError: the trunk is not of a pair, its features are not projected into the space of texts, its weights
            no longer belong to the pair, or the pair or its tokenizer cannot be had.
    """
    name = str(table.get("name"))
    wanted = "wanted the image encoder of a pair such as CLIP or SigLIP: pml-ext fit FOLDER --trunk hf/PAIR"
    if not name.startswith(HF):
        raise ConfigError(f"the trunk {name} has no text encoder; {wanted}")
    if table.get("pool") != PROJECTED:
        raise ConfigError(
            f"the trunk {name} has features of pool = {table.get('pool', 'auto')!r}, which have no texts beside them; "
            f"{wanted}, or model.trunk.pool = {PROJECTED!r}"
        )
    short = name.removeprefix(HF)
    pair, missing = load_model(short, "DEFAULT")
    if missing:
        raise ConfigError(
            f"{name}: its weights lack {len(missing)} tensors, which would be random; wanted all of a pair, as "
            "model.save_pretrained(FOLDER) writes them"
        )
    _check_same_weights(name, unwrapped_trunk(trunk), pair)
    return TextEncoder(pair, _tokenizer_of(short), name, device)


def _check_same_weights(name: str, trunk: nn.Module, pair: nn.Module) -> None:
    """Raise ConfigError for a trunk whose weights differ from the image encoder of a pair."""
    parts = {"model": pair.vision_model}
    if hasattr(pair, "visual_projection"):
        parts["projection"] = pair.visual_projection
    wanted = {}
    for part, module in parts.items():
        for key, tensor in module.state_dict().items():  # type: ignore[operator, union-attr]
            wanted[f"{part}.{key}"] = tensor
    found = trunk.state_dict()
    is_same = found.keys() == wanted.keys()
    is_same = is_same and all(torch.equal(found[key].cpu(), tensor.cpu()) for key, tensor in wanted.items())
    if not is_same:
        raise ConfigError(
            f"the trunk's weights differ from {name}: it was trained further, or the pair has changed, and "
            "texts and images are no longer in one space; wanted a frozen trunk of the same pair: pml-ext fit FOLDER "
            f"--closed-form --trunk {shlex.quote(name)}"
        )


def _tokenizer_of(name: str) -> Any:
    """Return the tokenizer of a model; ConfigError if it cannot be had."""
    transformers = transformers_library(name)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # of files that are cut or of another kind, many types
        raise ConfigError(
            f"{HF}{name}: its tokenizer cannot be had ({one_line(error)}); wanted its files in the folder, as "
            "tokenizer.save_pretrained(FOLDER) writes them"
        ) from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ConfigError(
            f"{HF}{name}: its tokenizer knows no words; wanted its files in the folder, as "
            "tokenizer.save_pretrained(FOLDER) writes them"
        )
    return tokenizer

"""Text encoders of pairs such as CLIP and SigLIP, whose image encoder is a trunk."""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, one_line, shortened

from .hf import HF, PROJECTED, load_model, transformers_library
from .trunks import unwrapped_trunk

BATCH = 64  # texts in a forward pass


class CutTextWarning(UserWarning):
    """A text is too long for its encoder, so its end is left out."""


class TextEncoder:
    """The text encoder of a pair; its vectors are in the space of the image features."""

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
        """Features of texts ``[N, D]``, not normalized; warns of texts that are cut.

        ConfigError for an empty text, and for a tokenizer of another model.
        """
        for text in texts:
            if not text.strip():
                raise ConfigError("found an empty text; type words, for example: --text 'a red car'")
        batches = [self._features_of(list(texts[start : start + BATCH])) for start in range(0, len(texts), BATCH)]
        return torch.cat(batches)

    def _features_of(self, texts: list[str]) -> Tensor:
        for text, ids in zip(texts, self.tokenizer(texts)["input_ids"], strict=True):
            if len(ids) > self._most:
                warnings.warn(
                    f"the text {text[:40]!r}... has {len(ids)} tokens, but its encoder reads only {self._most}; the "
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
                f"{self.name}: its tokenizer returns the token {largest}, but its text encoder knows "
                f"{self._vocabulary}. Save the tokenizer of the same model: tokenizer.save_pretrained(FOLDER)"
            )
        arguments = {key: tokens[key].to(self.device) for key in ("input_ids", "attention_mask") if key in tokens}
        features = self.pair.get_text_features(**arguments)  # type: ignore[operator]
        if not isinstance(features, Tensor):  # since transformers 5
            features = features.pooler_output
        return features  # type: ignore[no-any-return]


def text_encoder(table: Mapping[str, Any], trunk: nn.Module, device: torch.device) -> TextEncoder:
    """The text encoder that belongs to a frozen trunk, the image encoder of a pair.

    Args:
        table: ``[model] trunk`` of a recipe, with ``name``, ``weights`` and ``pool``.
        trunk: the network of that table.
        device: the device for texts.

    Raises:
        ConfigError: the trunk does not belong to a pair, does not project into the space of texts, or was trained; or
            the pair or its tokenizer cannot be loaded.
    """
    name = str(table.get("name"))
    remedy = "type: pml-ext fit FOLDER --trunk hf/PAIR, for a pair such as CLIP or SigLIP"
    if not name.startswith(HF):
        raise ConfigError(f"the trunk {name} has no text encoder; {remedy}")
    if table.get("pool") != PROJECTED:
        raise ConfigError(
            f"the trunk {name} has pool = {table.get('pool', 'auto')!r}, whose features cannot be compared with texts; "
            f"set model.trunk.pool = {PROJECTED!r}"
        )
    short = name.removeprefix(HF)
    pair, missing = load_model(short, "DEFAULT")
    if missing:
        raise ConfigError(
            f"{name}: its weights lack {len(missing)} tensors, which would be random. Save the whole pair: "
            "model.save_pretrained(FOLDER)"
        )
    _check_same_weights(name, unwrapped_trunk(trunk), pair)
    return TextEncoder(pair, _tokenizer_of(short), name, device)


def _check_same_weights(name: str, trunk: nn.Module, pair: nn.Module) -> None:
    vision: Any = pair.vision_model
    expected = {f"model.{key}": tensor for key, tensor in vision.state_dict().items()}
    if hasattr(pair, "visual_projection"):
        projection: Any = pair.visual_projection
        expected |= {f"projection.{key}": tensor for key, tensor in projection.state_dict().items()}
    found = trunk.state_dict()
    is_same = found.keys() == expected.keys()
    is_same = is_same and all(torch.equal(found[key].cpu(), tensor.cpu()) for key, tensor in expected.items())
    if not is_same:
        raise ConfigError(
            f"the trunk's weights differ from {name}, so texts and images are not in one space. Keep the trunk frozen: "
            f"pml-ext fit FOLDER --closed-form --trunk {shlex.quote(name)}"
        )


def _tokenizer_of(name: str) -> Any:
    transformers = transformers_library(name)
    remedy = "save it into the model's folder: tokenizer.save_pretrained(FOLDER)"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # truncated or foreign files raise many types
        reason = shortened(one_line(error), 100)
        raise ConfigError(f"{HF}{name}: its tokenizer cannot be loaded ({reason}); {remedy}") from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ConfigError(f"{HF}{name}: its tokenizer knows no words; {remedy}")
    return tokenizer

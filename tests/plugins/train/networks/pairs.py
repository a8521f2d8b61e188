"""Small pairs of encoders with random weights, saved as transformers saves them, with tokenizer and image processor."""

import json

import pytest
import torch

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "red", "car", "blue", "house", "on", "the", "hill"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VISION = SIZES | {"patch_size": 8, "image_size": 32}
TEXT = SIZES | {
    "vocab_size": len(WORDS),
    "max_position_embeddings": 8,
    "projection_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


def saved_pair(folder, kind="clip", seed=0):
    """Save a pair in a folder; return the model, in evaluation mode."""
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    torch.manual_seed(seed)
    if kind == "clip":
        model = transformers.CLIPModel(
            transformers.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=24)
        )
        images = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
    else:
        model = transformers.SiglipModel(transformers.SiglipConfig(vision_config=VISION, text_config=TEXT))
        images = {"size": {"height": 32, "width": 32}}
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            images | {"image_mean": MEAN, "image_std": STD, "resample": 3, "image_processor_type": "CLIPImageProcessor"}
        )
    )
    save_tokenizer(folder)
    return model.eval()


def save_tokenizer(folder, words=WORDS):
    """Save a tokenizer of whole words in a folder."""
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def own_text_features(model, texts, kind="clip"):
    """The features of texts by the pair's own method, one text after the other, without padding of the tokens."""
    numbers = {word: number for number, word in enumerate(WORDS)}
    rows = []
    for text in texts:
        ids = [1, *[numbers.get(word, 3) for word in text.split()], 2]
        if kind == "siglip":  # whose texts are padded
            ids += [0] * (8 - len(ids))
        mask = [1 if number else 0 for number in ids]
        with torch.no_grad():
            found = model.get_text_features(torch.tensor([ids]), attention_mask=torch.tensor([mask]))
        rows.append(getattr(found, "pooler_output", found)[0])
    return torch.stack(rows)


def own_image_features(model, images):
    """The features of preprocessed images by the pair's own method."""
    with torch.no_grad():
        found = model.get_image_features(pixel_values=images)
    return getattr(found, "pooler_output", found)

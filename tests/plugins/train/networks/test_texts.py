"""The text encoder beside a trunk: the pair's own features, and whatever is not the other half of the trunk."""

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext_train.networks.hf import PROJECTED, hf_trunk
from pml_ext_train.networks.texts import CutTextWarning, text_encoder
from pml_ext_train.networks.trunks import mlp

from .pairs import WORDS, own_text_features, save_tokenizer, saved_pair

CPU = torch.device("cpu")
TEXTS = ["a red car", "the blue house on the hill", "car"]


def table_of(folder, pool=PROJECTED):
    return {"name": f"hf/{folder}", "weights": "DEFAULT", "pool": pool}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_texts_have_the_features_that_the_pair_gives_them(tmp_path, kind, channels):
    model = saved_pair(tmp_path, kind)
    trunk = hf_trunk(channels, 32, str(tmp_path), "DEFAULT", PROJECTED)
    found = text_encoder(table_of(tmp_path), trunk, CPU)(TEXTS)
    torch.testing.assert_close(found, own_text_features(model, TEXTS, kind), rtol=1e-5, atol=1e-6)


def test_a_long_text_is_cut_with_a_warning(tmp_path):
    saved_pair(tmp_path)
    encoder = text_encoder(table_of(tmp_path), hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED), CPU)
    with pytest.warns(CutTextWarning, match="its encoder takes 8 tokens, and it has 11; the end is left out"):
        assert encoder(["a red car on the hill on the hill"]).shape == (1, 24)
    with pytest.raises(ConfigError, match="found an empty text"):
        encoder(["car", " "])


def test_other_trunks_have_no_texts(tmp_path):
    saved_pair(tmp_path)
    with pytest.raises(ConfigError, match="the trunk mlp has no text encoder; wanted .*--trunk hf/PAIR"):
        text_encoder({"name": "mlp"}, mlp(3, 8), CPU)
    trunk = hf_trunk(3, 32, str(tmp_path), "DEFAULT", "cls")
    with pytest.raises(ConfigError, match="has features of pool = 'cls', which have no texts beside them"):
        text_encoder(table_of(tmp_path, "cls"), trunk, CPU)


def test_a_trunk_that_was_trained_further_is_refused(tmp_path):
    saved_pair(tmp_path)
    trunk = hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)
    with torch.no_grad():
        next(trunk.parameters()).add_(1e-6)
    with pytest.raises(ConfigError, match="it was trained further, or the pair has changed"):
        text_encoder(table_of(tmp_path), trunk, CPU)


def test_a_folder_that_has_another_pair_now_is_refused(tmp_path):
    saved_pair(tmp_path)
    trunk = hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)
    saved_pair(tmp_path, seed=1)
    with pytest.raises(ConfigError, match="the trunk's weights differ from hf/"):
        text_encoder(table_of(tmp_path), trunk, CPU)


def test_a_tokenizer_that_is_missing_or_of_another_model_is_refused(tmp_path):
    saved_pair(tmp_path)
    trunk = hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)
    save_tokenizer(tmp_path, [*WORDS, "tree"])
    with pytest.raises(ConfigError, match="its tokenizer has the token 12, and its text encoder knows 12; wanted"):
        text_encoder(table_of(tmp_path), trunk, CPU)(["a tree"])
    for file in tmp_path.glob("token*"):
        file.unlink()
    with pytest.raises(ConfigError, match="tokenizer (knows no words|cannot be had)"):
        text_encoder(table_of(tmp_path), trunk, CPU)

"""The text encoder that belongs to a trunk, and trunks without one."""

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
def test_features_of_texts_equal_those_of_pairs(tmp_path, kind, channels):
    model = saved_pair(tmp_path, kind)
    trunk = hf_trunk(channels, 32, str(tmp_path), "DEFAULT", PROJECTED)
    found = text_encoder(table_of(tmp_path), trunk, CPU)(TEXTS)
    torch.testing.assert_close(found, own_text_features(model, TEXTS, kind), rtol=1e-5, atol=1e-6)


@pytest.fixture
def trunk(tmp_path):
    saved_pair(tmp_path)
    return hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)


def test_a_long_text_is_cut_with_warning(trunk, tmp_path):
    encoder = text_encoder(table_of(tmp_path), trunk, CPU)
    with pytest.warns(CutTextWarning, match="has 11 tokens, but its encoder reads only 8; the end is left out"):
        assert encoder(["a red car on the hill on the hill"]).shape == (1, 24)
    with pytest.raises(ConfigError, match="found an empty text"):
        encoder(["car", " "])


def test_trunks_without_projection_have_no_texts(trunk, tmp_path):
    with pytest.raises(ConfigError, match="the trunk mlp has no text encoder; type: .*--trunk hf/PAIR"):
        text_encoder({"name": "mlp"}, mlp(3, 8), CPU)
    with pytest.raises(ConfigError, match="has pool = 'cls', whose features cannot be compared with texts"):
        text_encoder(table_of(tmp_path, "cls"), trunk, CPU)


@pytest.mark.parametrize("changed", ["trunk", "folder"])
def test_a_trunk_that_differs_is_refused(trunk, tmp_path, changed):
    if changed == "folder":
        saved_pair(tmp_path, seed=1)
    else:
        with torch.no_grad():
            next(trunk.parameters()).add_(1e-6)
    with pytest.raises(
        ConfigError, match=r"the trunk's weights differ from hf/.*\. Keep the trunk frozen: pml-ext fit"
    ):
        text_encoder(table_of(tmp_path), trunk, CPU)


def test_a_wrong_tokenizer_is_refused(trunk, tmp_path):
    save_tokenizer(tmp_path, [*WORDS, "tree"])
    with pytest.raises(ConfigError, match=r"its tokenizer returns the token 12, but its text encoder knows 12\. Save"):
        text_encoder(table_of(tmp_path), trunk, CPU)(["a tree"])
    for file in tmp_path.glob("token*"):
        file.unlink()
    with pytest.raises(ConfigError, match="tokenizer (knows no words|cannot be loaded)"):
        text_encoder(table_of(tmp_path), trunk, CPU)

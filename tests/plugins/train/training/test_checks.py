"""What is checked before a run trains."""

import pytest
import torch

from pml_ext_train.networks.trunks import convnet
from pml_ext_train.training.checks import warn_of_small_batches

from .whole_runs import built

STAGE = 'stages=[{epochs=2, loss={name="cbml"}, freeze="trunk"}]'


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ([], 40),
        (["sampler.m=16", "sampler.batch_size=144"], None),
        (["sampler.m=16", "sampler.batch_size=144", "engine.micro_batch=32"], 32),
        (["model.freeze_batch_norm=true"], None),
        (["model.freeze=trunk"], None),
        (['model.freeze=["*"]'], None),
        (['model.freeze=["1", "5"]'], None),  # the batch norms
        (['model.freeze=["0"]'], 40),
        (['model.freeze={until="4"}'], 40),
        (['model.freeze={until="6"}'], None),  # after the last batch norm
        ([STAGE], 40),  # the stage after it trains all
        (["model.trunk.weights=random"], None),
        (['paper={table="a paper, Table 1"}'], None),
    ],
)
def test_small_batches_of_pretrained_norms_are_told(tmp_path, settings, images):
    weights = tmp_path / "weights.pth"
    torch.save(convnet(1, 8, blocks=2, width=8).state_dict(), weights)
    trunk = f'model.trunk={{name="convnet", blocks=2, width=8, weights="{weights}"}}'
    given = (trunk, "sampler.batch_size=40", "schedule.epochs=10", *settings)
    run = built(tmp_path, *given, recipe="pml/multi-similarity/digits", device="cpu")
    warn_of_small_batches(run)
    found = [text for text in run.history.warnings if "batch norms of the pretrained trunk" in text]
    assert len(found) == (images is not None)
    for text in found:
        assert f"see {images} images at once" in text
        assert text.endswith("--set model.freeze_batch_norm=true")

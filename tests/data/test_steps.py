"""What every image goes through without torchvision gives what torchvision gives."""

import itertools
import subprocess
import sys

import pytest
import torch
from torchvision.transforms import v2

from pml_ext.data.transforms import CenterCrop, ToFloat, resize

SIDES = (1, 7, 20, 31, 90)


def images(channels):
    generator = torch.Generator().manual_seed(channels)
    for height, width in itertools.product(SIDES, SIDES):
        image = torch.randint(256, (height, width, channels), dtype=torch.uint8, generator=generator).permute(2, 0, 1)
        yield from (image, image.contiguous())


@pytest.mark.parametrize("channels", [1, 3])
def test_steps_give_what_torchvision_gives(channels):
    for image in images(channels):
        for size in (5, 20, (16, 16)):
            for each in (image, image.float()):
                assert torch.equal(resize(each, size), v2.functional.resize(each, size, antialias=True))
        for size in (5, 40):
            assert torch.equal(CenterCrop(size)(image), v2.CenterCrop(size)(image))
        for scale in (True, False):
            assert torch.equal(ToFloat(scale)(image), v2.ToDtype(torch.float32, scale=scale)(image))
        mean, std = [0.48, 0.45, 0.4][:channels], [0.22, 0.23, 0.25][:channels]
        assert torch.equal(
            ToFloat(True, (mean, std))(image), v2.Normalize(mean, std)(v2.ToDtype(torch.float32, scale=True)(image))
        )


def test_a_network_of_ours_is_had_without_torchvision_and_without_plugins():
    """Either takes most of a second to import."""
    code = (
        "import sys, pml_ext.network, pml_ext.experiment.recipe, pml_ext.data; from pml_ext import models; "
        "models.builtin_trunk('convnet')(1, 8, 2); pml_ext.data.build_transforms(8, 1); "
        "print([name for name in ('torchvision', 'pytorch_metric_learning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

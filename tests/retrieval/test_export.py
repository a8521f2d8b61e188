"""An exported network without this package."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.experiment import train


def test_an_exported_network_gives_the_embeddings_without_this_package(command, runs, folder, tmp_path):
    done = command("export", runs[0], "-o", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "exported" / "preprocess.json").read_text())
    assert (about["image_size"], about["channels"], about["normalize"]) == (8, 1, None)
    script = """
        import json, sys
        sys.modules["pml_ext"] = None
        import numpy as np, torch
        from PIL import Image
        from safetensors.torch import load_file
        from torch import nn
        tensors = load_file(sys.argv[1] + "/model.safetensors")
        about = json.load(open(sys.argv[1] + "/preprocess.json"))
        block = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.ModuleDict({"trunk": nn.Sequential(*block(1, 16), *block(16, 16), nn.Flatten()),
                             "embedder": nn.Linear(about["features"], about["embedding_size"])}).eval()
        net.load_state_dict(tensors)
        image = torch.tensor(np.array(Image.open(sys.argv[2]).convert("L")))[None, None] / 255
        found = nn.functional.normalize(net["embedder"](net["trunk"](image)))
        print(json.dumps(found[0].tolist()))
    """
    file = next(folder.glob("4/*.png"))
    line = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "exported"), str(file)]
    embedding = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert embedding == pytest.approx(load_run(runs[0], "cpu").embed(file)[0].tolist(), abs=1e-5)


@pytest.mark.usefixtures("without_report")
def test_the_lines_of_the_readme_load_an_export(tmp_path):
    """A colour folder, a torchvision trunk, and the README's words."""
    generator = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        for number in range(6):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(256, size=(40, 48, 3), dtype=np.uint8)).save(file)
    train(
        "pml/contrastive/digits", out=tmp_path / "run", device="cpu",
        overrides=(f"data.name=folder:{tmp_path / 'photos'}", "data.image_size=32", "data.augment={}",
                   "model.trunk=torchvision/resnet18", "sampler={name='shuffle', batch_size=6, iterations=1}",
                   "schedule={epochs=1}"),
    )  # fmt: skip
    run = load_run(tmp_path / "run", "cpu")
    run.export(tmp_path / "exported")
    photo = tmp_path / "photos" / "a" / "3.png"
    (tmp_path / "photo.png").write_bytes(photo.read_bytes())
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "load_file" in block]
    script = f"import sys\nsys.modules['pml_ext'] = None\n{block}\nprint(embedding[0].tolist())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(run.embed(photo)[0].tolist(), abs=1e-5)


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_code_of_an_exports_author_is_run(runs, tmp_path):
    """Its tensors are read by safetensors, which knows no code, and the rest is JSON."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    load_run(runs[0], "cpu").export(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "preprocess.json", "SHA256SUMS"}
    torch.save({"trunk.weight": Opens(tmp_path / "written")}, tmp_path / "model.safetensors")
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "model.safetensors")
    assert not (tmp_path / "written").exists()

"""An environment of its own for somebody else's plugin."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest


class Environment:
    """A virtual environment beside the running one."""

    def __init__(self, place: Path) -> None:
        venv.create(place, with_pip=True)
        self.bin = place / "bin"
        packages = next((place / "lib").glob("python*/site-packages"))
        running = sysconfig.get_paths()["purelib"]
        (packages / "running.pth").write_text(f"import site; site.addsitedir({running!r})\n")
        # pip's own options: no second torch, and what builds is what is installed
        self.variables = os.environ | {
            "PATH": f"{self.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INDEX": "1",
            "VIRTUAL_ENV": str(place),
        }
        for name, module in {"pml-ext": "pml_ext", "pytest": "pytest"}.items():
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {module} "$@"\n')
            script.chmod(0o755)

    def run(self, line: str, cwd: Path, fails: bool = False) -> str:
        done = subprocess.run(line, shell=True, cwd=cwd, env=self.variables, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    pytest.importorskip("hatchling")
    return Environment(tmp_path_factory.mktemp("environment") / "venv")

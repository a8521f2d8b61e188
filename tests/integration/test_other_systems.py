"""A process without what POSIX alone has, in place of Windows: it trains, resumes, indexes and answers a query.

Libraries are imported before the names are taken away, since they would look for their own Windows parts. What a double
cannot show, such as files that cannot be replaced while they are open, is in docs/faults.md.
"""

import json
import subprocess
import sys
import textwrap

import pytest

ELSEWHERE = """
    import multiprocessing.shared_memory, os, shutil, signal, socket, sqlite3, subprocess, sys, tempfile
    import filelock, matplotlib.pyplot, scipy.optimize, sklearn.cluster, sklearn.datasets, sklearn.manifold
    import tensorboard, torch, torchvision.transforms.v2, typer, rich.console, rich.progress
    import torch.utils.tensorboard, PIL.Image, pytorch_metric_learning.losses, pydantic

    for name in ("SIGHUP", "SIGCHLD", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_kill", "pthread_sigmask"):
        delattr(signal, name)
    for name in ("sched_getaffinity", "confstr", "fork", "killpg", "setsid", "getuid", "geteuid", "mkfifo", "symlink"):
        delattr(os, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty"):
        sys.modules[name] = None
    opened = os.open

    def open_no_folder(path, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return opened(path, *more, **options)

    os.open = open_no_folder
    shutil._use_fd_functions = False  # as where folders cannot be opened
    sys.platform = "win32"

    from pml_ext.cli import main

    main()
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A function that runs a command in a process of that kind, and returns the output."""
    script = tmp_path / "elsewhere.py"
    script.write_text(textwrap.dedent(ELSEWHERE))

    def run(*arguments, code=0):
        given = [sys.executable, str(script), *map(str, arguments)]
        done = subprocess.run(given, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


def test_commands_run_without_what_posix_alone_has(elsewhere, tmp_path):
    from PIL import Image
    from sklearn.datasets import load_digits

    train = ["train", "cbml/digits", "--out", "run", "--device", "cpu", "--set", "schedule.epochs=2"]
    train += ["--set", "schedule.milestones=[1]", "--set", "sampler.iterations=3", "--set", "evaluation.figures=few"]
    elsewhere(*train)
    (tmp_path / "run" / "metrics.json").unlink()
    elsewhere(*train, "--resume")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 2
    assert b"\r" not in (tmp_path / "run" / "SHA256SUMS").read_bytes()

    photos = tmp_path / "photos"
    photos.mkdir()
    for number, image in enumerate(load_digits().images[:12]):
        Image.fromarray((image * 255 / 16).astype("uint8")).save(photos / f"{number}.png")
    elsewhere("index", "run", "photos", "--device", "cpu")
    (answer,) = json.loads(elsewhere("query", "run", "photos/3.png", "-k", "1", "--device", "cpu", "--json"))
    assert "3.png" in json.dumps(answer)
    elsewhere("doctor")  # whose self test passes

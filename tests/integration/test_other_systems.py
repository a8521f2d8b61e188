"""A process without what POSIX alone has, in place of Windows: it trains, resumes, indexes and answers a query.

Libraries are imported before the names are taken away, since they would look for their own Windows parts. What a double
cannot show, such as files that cannot be replaced while they are open, is in docs/faults.md.
"""

import json
import subprocess
import sys
import textwrap

from ..digit_files import write_digits

# Each command is a fork of one process that has imported what it needs, which takes most of its time otherwise.
ELSEWHERE = """
    import gc, json, multiprocessing.shared_memory, os, shutil, signal, socket, sqlite3, subprocess, sys, tempfile
    import filelock, matplotlib.pyplot, scipy.optimize, sklearn.cluster, sklearn.datasets, sklearn.manifold
    import tensorboard, torch, torchvision.transforms.v2, typer, rich.console, rich.progress
    import torch.utils.tensorboard, PIL.Image, pytorch_metric_learning.losses, pydantic

    fork = os.fork
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

    import pml_ext_train.launch.launch, pml_ext_train.results.run_report
    from pml_ext_train.cli import main

    gc.freeze()  # the forks' collectors would copy the memory of all that was imported
    for number, (program, *arguments) in enumerate(json.loads(sys.argv[1])):
        if program == "rm":
            os.unlink(*arguments)
            continue
        child = fork()
        if child == 0:
            os.dup2(opened(f"{number}.out", os.O_WRONLY | os.O_CREAT), 1)
            sys.argv = [program, *arguments]
            main()
            sys.exit()
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{arguments} ended with {code}")
    gc.unfreeze()
"""


def test_commands_run_without_what_posix_alone_has(tmp_path):
    write_digits(tmp_path / "photos", 12)
    train = "pml-ext train cbml/digits --out run --device cpu --set schedule.epochs=2 --set schedule.milestones=[1]"
    train += " --set sampler.iterations=3 --set evaluation.figures=few --set model.trunk.width=8"
    lines = [
        train,
        "rm run/metrics.json",
        f"{train} --resume",
        "pml-ext index run photos --device cpu",
        "pml-ext query run photos/3.png -k 1 --device cpu --json",
        "pml-ext doctor",  # whose self test passes
    ]
    script = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), json.dumps([line.split() for line in lines])]
    done = subprocess.run(script, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 2
    assert b"\r" not in (tmp_path / "run" / "SHA256SUMS").read_bytes()
    (answer,) = json.loads((tmp_path / "4.out").read_text())
    assert "3.png" in json.dumps(answer)

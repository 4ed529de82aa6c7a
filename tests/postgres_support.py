"""A private Postgres for the length of the tests: its own directory, a unix socket, no network."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import psycopg
import pytest

DEADLINE_S = 60.0
_INSTALLED = Path("/usr/lib/postgresql")


@pytest.fixture(scope="session")
def postgres_url() -> Generator[str]:
    """The URL of a database on a server that is stopped when the tests end."""
    with private_postgres(fsync=False) as url:
        yield url


@contextlib.contextmanager
def private_postgres(*, fsync: bool) -> Generator[str]:
    """Start a server with default settings, but for `fsync`; its URL."""
    binaries = _binaries()
    directory = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    try:
        if os.getuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        initdb = [str(binaries / "initdb"), f"--pgdata={data}", "--username=headrace"]
        initdb += ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        made = _as_postgres(initdb)
        done = subprocess.run(made, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"initdb failed: {done.stderr}"
        with _running(binaries, directory, data, fsync=fsync):
            yield f"postgresql+psycopg://headrace@/postgres?host={directory}"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _running(binaries: Path, directory: Path, data: Path, *, fsync: bool) -> Generator[None]:
    log = directory / "log"
    command = [str(binaries / "postgres"), "-D", str(data), "-k", str(directory)]
    command += ["-c", "listen_addresses=", "-c", f"fsync={'on' if fsync else 'off'}"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            _as_postgres(command), cwd=directory, stdout=output, stderr=output
        )
        try:
            _wait_until_ready(server, directory, log)
            yield
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing in it is kept
            try:
                server.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(DEADLINE_S)


def _wait_until_ready(server: subprocess.Popen[bytes], directory: Path, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            psycopg.connect(host=str(directory), user="headrace", dbname="postgres").close()
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"Postgres does not start: {error}\n{log.read_text()}")
            time.sleep(0.05)
        else:
            return


def _binaries() -> Path:
    """Where the newest installed server's programs are."""
    for directory in sorted(_INSTALLED.glob("*/bin"), key=_version, reverse=True):
        if (directory / "initdb").exists():
            return directory
    found = shutil.which("initdb")
    if found is None:
        pytest.fail("these tests need a Postgres server: apt-get install postgresql")
    return Path(found).resolve().parent


def _version(directory: Path) -> int:
    name = directory.parent.name
    return int(name) if name.isdigit() else 0


def _as_postgres(command: Sequence[str]) -> list[str]:
    """Postgres does not run as root; and it ends with us, even if we are killed."""
    prefix = ["setpriv", "--pdeathsig=QUIT"]
    if os.getuid() == 0:
        prefix += ["--reuid=postgres", "--regid=postgres", "--clear-groups"]
    return [*prefix, "--", *command]

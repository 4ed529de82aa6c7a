from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REFERENCE = "localhost/headrace-engine-test:1"
NEEDS = "apt-get install podman busybox-static"


def podman(*args: str) -> str:
    """The output of a podman command that must succeed."""
    done = subprocess.run(["podman", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_image(scratch: Path, reference: str, *, without: tuple[str, ...] = ()) -> None:
    """A local image of busybox, with a file in its working directory."""
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or busybox is None:
        pytest.skip(f"this needs podman and a static busybox: {NEEDS}")
    root = scratch / "root"
    for name in ("bin", "etc", "tmp", "proc", "dev", "sys", "workspace/given"):
        (root / name).mkdir(parents=True)
    shutil.copyfile(busybox, root / "bin/busybox")
    (root / "bin/busybox").chmod(0o755)
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name != "busybox" and name not in without:
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files\n")
    (root / "workspace/given/file").write_text("of the image\n")
    archive = scratch / "root.tar"
    subprocess.run(
        ["tar", "-C", root, "--owner=0", "--group=0", "-cf", archive, "."], check=True, timeout=60
    )
    podman("import", str(archive), reference)


def fake(directory: Path, name: str, body: str) -> Path:
    """A program that runs a Python body; the directory is to be put on the path."""
    program = directory / name
    program.write_text(f"#!{sys.executable} -IS\n{textwrap.dedent(body)}")
    program.chmod(0o755)
    return program

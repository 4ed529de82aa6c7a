"""The verb `doctor`: whether this machine can do the work, and the next command where not."""

from __future__ import annotations

import json as json_module
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.output import emit, emit_json, table

__all__ = ["Check", "examine", "register"]

_GB = 1e9
_PACKAGES = ("transformers", "peft", "safetensors", "numpy", "pyarrow", "reasoning-gym")
_PROBE = """
import json, torch
from headrace.policy.native import Kernels, kernels
found = kernels()
gpu = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "gpu": torch.cuda.get_device_name(0) if gpu else None,
    "bf16": bool(torch.cuda.is_bf16_supported()) if gpu else None,
    "kernels": None if isinstance(found, Kernels) else found.reason,
}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `hint` is the next command where it is not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: str = ""


def doctor(
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")
    ] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")] = False,
) -> None:
    """Check this machine: Python, torch, cores, memory, disk, model cache, packs, sandboxes.

    Exits 5 if something would stop a run.

    \b
    Examples:
      headrace doctor
      headrace doctor --json
    """
    from headrace.errors import Exit

    checks = examine(runs)
    if json:
        emit_json([asdict(check) for check in checks])
    else:
        rows = [[check.state, check.name, check.detail] for check in checks]
        for line, check in zip(table(rows).splitlines(), checks, strict=True):
            emit(f"{line}\n      hint: {check.hint}" if check.hint else line)
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(Exit.INFRASTRUCTURE)


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def examine(runs: Path) -> list[Check]:
    """Every check, in the order in which they matter."""
    looks: list[Callable[[], list[Check]]] = [
        _python,
        _torch,
        _packages,
        _cores,
        _memory,
        lambda: _disks(runs),
        _models,
        _packs,
        _sandbox,
    ]
    return [check for look in looks for check in look()]


def _python() -> list[Check]:
    return [Check("python", "ok", sys.version.split()[0])]


def _torch() -> list[Check]:
    """Import torch in a process of its own: a broken build may crash rather than raise."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return [Check("torch", "fail", "importing it took over 120 s", "pip install torch")]
    if probe.returncode != 0:
        said = (probe.stderr.strip().splitlines() or [f"exit {probe.returncode}"])[-1]
        return [Check("torch", "fail", said, "pip install torch")]
    found = json_module.loads(probe.stdout.strip().splitlines()[-1])
    checks = [Check("torch", "ok", f"{found['version']}, {found['threads']} threads")]
    checks.append(_kernels(found["kernels"]))
    if found["gpu"] is not None:
        checks.append(Check("gpu", "ok", found["gpu"]))
        return [*checks, _bf16(bool(found["bf16"]))]
    checks.append(Check("gpu", "ok", "none: runs use the CPU"))
    flags = _cpu_flags()
    if flags is None:
        return [*checks, Check("bf16", "ok", "unknown on this platform: runs use fp32")]
    return [*checks, _bf16(bool(flags & {"amx_bf16", "avx512_bf16"}))]


def _kernels(missing: str | None) -> Check:
    if missing is None:
        return Check("kernels", "ok", "compiled for this processor")
    detail = f"{missing}: sampling on a CPU takes the slower general engine"
    return Check("kernels", "warn", detail, "install a C compiler, on Debian: apt-get install gcc")


def _bf16(native: bool) -> Check:
    detail = "native" if native else "not native: model.autocast = auto uses fp32"
    return Check("bf16", "ok", detail)


def _cpu_flags() -> set[str] | None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return None
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = [line.partition(":")[2] for line in lines if line.startswith("flags")]
    return set(flags[0].split()) if flags else None


def _packages() -> list[Check]:
    from importlib import metadata

    versions: list[str] = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            return [Check("packages", "fail", f"{name} is missing", f"pip install {name}")]
    return [Check("packages", "ok", ", ".join(versions))]


def _cores() -> list[Check]:
    count = os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    if cores < 2:
        return [Check("cores", "warn", f"{cores}", "expect quickstart to take twice as long")]
    return [Check("cores", "ok", str(cores))]


def _memory() -> list[Check]:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return [Check("memory", "ok", "unknown on this platform")]
    values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(values["MemAvailable"].split()[0]) * 1024
    limit = _cgroup_limit()
    free = free if limit is None else min(free, limit)
    detail = f"{free / _GB:.1f} GB available"
    if free < 3 * _GB:
        return [Check("memory", "warn", detail, "headrace run smoke (the 135M model needs 3 GB)")]
    return [Check("memory", "ok", detail)]


def _cgroup_limit() -> int | None:
    path = Path("/sys/fs/cgroup/memory.max")
    text = path.read_text().strip() if path.exists() else "max"
    return int(text) if text.isdecimal() else None


def _disks(runs: Path) -> list[Check]:
    from headrace.policy.cache import cache_root

    cache = cache_root()
    return [
        _disk("cache disk", cache, 1.5, "set HEADRACE_CACHE to a directory on a larger disk"),
        _disk("runs disk", runs, 4.0, "headrace run RECIPE --runs DIR on a larger disk"),
    ]


def _disk(name: str, path: Path, needed_gb: float, hint: str) -> Check:
    place = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    detail = f"{free / _GB:.1f} GB free at {path}"
    if not os.access(place, os.W_OK):
        return Check(name, "fail", f"cannot write at {place}", hint)
    if free < needed_gb * _GB:
        return Check(name, "warn", f"{detail}; {needed_gb} GB are wanted", hint)
    return Check(name, "ok", detail)


def _models() -> list[Check]:
    from headrace.cli.models import cached_models
    from headrace.recipe import DEFAULT_MODEL

    models = cached_models()
    damaged = [m["source"] for m in models if m["state"] != "complete"]
    if damaged:
        hint = f"headrace models pull {damaged[0]}"
        return [Check("models", "warn", f"damaged: {', '.join(damaged)}", hint)]
    if DEFAULT_MODEL not in [m["source"] for m in models]:
        return [Check("models", "warn", "the default model is not here", "headrace models pull")]
    return [Check("models", "ok", f"{len(models)} in the cache")]


def _packs() -> list[Check]:
    from headrace.data.packs import Catalogue
    from headrace.errors import HeadraceError

    try:
        with Catalogue() as catalogue:
            count = len(catalogue.names())
    except HeadraceError as error:
        return [Check("task packs", "fail", str(error), error.hint)]
    return [Check("task packs", "ok", f"{count} domains")]


def _sandbox() -> list[Check]:
    from headrace.cli import sandbox_doctor
    from headrace.errors import HeadraceError
    from headrace.sandbox import registry

    try:
        found = registry.find().backends
        backend = sandbox_doctor.default_of(found)
    except HeadraceError as error:
        return [Check("sandbox", "warn", str(error), error.hint)]
    if backend is not None:
        about = sandbox_doctor.program(backend) or backend.capabilities().isolation.label
        return [Check("sandbox", "ok", f"{backend.name} ({about})")]
    why = f"{found[0].name}: {found[0].available()}" if found else "no backend is installed"
    hint = "headrace sandbox doctor --quick"
    return [Check("sandbox", "warn", f"none that isolates; {why}", hint)]

"""Verbs about sandboxes: `sandbox doctor`, `sandbox ls`, `sandbox reap`, `sandbox exec`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import emit, emit_json, table, tell

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="Isolated places where untrusted programs run.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Only this one.", show_default=False),
]


@group.command("doctor")
def doctor(
    backend: BackendName = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="Check in this one, such as podman:REF.  [default: host]"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Check every backend that works, not just the default.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check nothing: only what they declare.")
    ] = False,
    json: Json = False,
) -> None:
    """Check which backends work here, what they give and cost.

    The default one, or the named one, is held to every promise of the conformance suite and
    measured; that takes 10 to 20 seconds. Exits 3 if it breaks one, 5 if it does not work here.

    \b
    Examples:
      headrace sandbox doctor
      headrace sandbox doctor --backend oci --json
      headrace sandbox doctor --quick
      headrace sandbox doctor --all
    """
    from headrace.cli import sandbox_doctor

    health = sandbox_doctor.examine(backend, quick=quick, every=every, image=image)
    if json:
        emit_json(health.json())
    else:
        emit(health.text())
    health.judge()


@group.command("ls")
def ls(json: Json = False) -> None:
    """List the sandboxes that exist, and who owns them.

    An orphan's owner is dead or no longer looks after it: `headrace sandbox reap` removes it.

    \b
    Examples:
      headrace sandbox ls
      headrace sandbox ls --json
    """
    from dataclasses import asdict

    from headrace.observe.console import format_duration
    from headrace.sandbox.pool.leases import Leases

    with Leases() as leases:
        now = leases.clock()
        owned = leases.owned(now)
    if json:
        emit_json([{**asdict(each), "age_s": now - each.created} for each in owned])
        return
    if not owned:
        tell("no sandboxes")
        return
    rows: list[list[str]] = []
    for each in owned:
        left = each.expires - now
        expires = f"in {format_duration(left)}" if left > 0 else f"{format_duration(-left)} ago"
        age = format_duration(max(0.0, now - each.created))
        orphan = "yes" if each.orphan else "no"
        rows.append([each.id, each.backend, str(each.owner_pid), each.state, age, expires, orphan])
    emit(table(rows, header=["ID", "BACKEND", "OWNER", "STATE", "AGE", "EXPIRES", "ORPHAN"]))


@group.command("reap")
def reap(json: Json = False) -> None:
    """Remove what managers that died left behind.

    That is sandboxes, with their processes, mounts, control groups and files. Exits 5, with the
    reason, if something would not go. Living managers lose nothing.

    \b
    Examples:
      headrace sandbox reap
      headrace sandbox reap --json
    """
    from headrace.cli import sandbox_reap

    swept = sandbox_reap.sweep()
    if json:
        emit_json(swept.json)
    elif swept.removed:
        emit(table(swept.removed, header=["REMOVED", "BACKEND"]))
    elif swept.clean:
        tell("nothing was left behind")
    swept.judge()


@group.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    argv: Annotated[
        list[str], typer.Argument(metavar="ARGV", help="The command.", show_default=False)
    ],
    image: Annotated[
        str, typer.Option("--image", help="host, dir:PATH of a root filesystem, or a reference.")
    ] = "host",
    backend: BackendName = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="CLASS",
            help="At least: trusted, process, namespace, user-kernel or virtual-machine.",
        ),
    ] = "namespace",
    memory: Annotated[
        int | None,
        typer.Option("--memory", metavar="MB", min=2, help="Processes and files.  [default: 512]"),
    ] = None,
    disk: Annotated[
        int | None,
        typer.Option(
            "--disk", metavar="MB", min=1, help="Files, as a part of memory.  [default: half]"
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option("--cpus", metavar="N", help="Cores.  [default: 1.0]")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="With threads.  [default: 128]"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds.")
    ] = 60.0,
    network: Annotated[
        str | None,
        typer.Option(
            "--network", metavar="none|full", help="full is this host's own.  [default: none]"
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="HOST", help="Reach this host only; may be repeated."),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="HOST:INSIDE", help="A directory to see read-only."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="PATH", help="Copy it into the working directory first."),
    ] = None,
) -> None:
    """Run one command in a sandbox of its own.

    The sandbox is fresh, and gone afterwards. The command's streams come out when it has ended
    (64 MiB at most), and its exit code is this one's. Standard input is passed on unless it is a
    terminal. 126 and 127 are a program that cannot be started, 128 + N an end by signal N.
    Other ends are said on standard error:

    \b
      2    nothing was run: no backend gives what is asked
      5    the sandbox failed, not the command
      121  it failed after it was refused a process
      122  it failed with its disk full
      123  it wrote more than 64 MiB
      124  its time was over
      137  it was killed at the memory limit

    \b
    Examples:
      headrace sandbox exec -- python3 -c 'print(6 * 7)'
      headrace sandbox exec --file solve.py -- python3 solve.py < input.txt
      headrace sandbox exec --allow example.com -- curl -sI https://example.com
    """
    from headrace.cli import sandbox_exec
    from headrace.sandbox import registry
    from headrace.sandbox.spec import Isolation, SandboxSpec

    limits = sandbox_exec.limits_of(memory_mb=memory, disk_mb=disk, cpus=cpus, processes=processes)
    spec = SandboxSpec(
        image=image,
        isolation=Isolation.of(isolation),
        limits=limits,
        network=sandbox_exec.network_of(network, allow or []),
        mounts=tuple(map(sandbox_exec.mount_of, mount or [])),
        lifetime_s=sandbox_exec.lifetime_s(timeout),
    )
    chosen = registry.choose(spec, None if backend is None else [backend])
    command = sandbox_exec.Command(
        argv=tuple(argv),
        spec=spec,
        timeout_s=timeout,
        files=tuple(file or []),
        stdin=sandbox_exec.read_stdin(within_s=timeout),
    )
    ended = sandbox_exec.run(command, chosen)
    raise typer.Exit(sandbox_exec.show(ended, command))

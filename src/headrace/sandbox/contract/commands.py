"""Promises about single commands: how they end, what they say, what they get, what they leave."""

from __future__ import annotations

import asyncio
import os
import secrets

from headrace.errors import UsageError
from headrace.sandbox.contract.kit import (
    Broken,
    Lab,
    beats,
    expect,
    gone,
    heart,
    promise,
    succeed,
)
from headrace.sandbox.spec import ExecLimits, Outcome, Result

__all__ = ["PROMISES"]

_CODES = (0, 1, 2, 77, 125, 126, 127, 128, 255)
_SHARED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}
    | {"TMPDIR", "HOSTNAME", "TZ", "container"}
)
_HUGE = 8 * 2**20


@promise()
async def exit_codes(lab: Lab) -> None:
    """An exit code comes out as it was, whatever it is."""
    box = await lab.sandbox()
    for code in _CODES:
        result = await box.exec(["sh", "-c", f"exit {code}"])
        expect(
            (result.outcome, result.exit_code, result.signal) == (Outcome.RESULT, code, None),
            f"exit {code} came out as {result.outcome}, {result.exit_code}, {result.signal}",
        )


@promise()
async def signals(lab: Lab) -> None:
    """A command that a signal ended has that signal and no exit code."""
    box = await lab.sandbox()
    for name, number in (("TERM", 15), ("KILL", 9), ("ABRT", 6), ("PIPE", 13)):
        result = await box.exec(["sh", "-c", f"kill -{name} $$"])
        expect(
            (result.outcome, result.exit_code, result.signal) == (Outcome.RESULT, None, number),
            f"SIG{name} came out as {result.outcome}, {result.exit_code}, {result.signal}",
        )


@promise()
async def streams(lab: Lab) -> None:
    """Both streams come out apart, byte for byte."""
    box = await lab.sandbox()
    result = await succeed(box, r"printf 'a\000\377\n'; printf 'b\376' >&2")
    expect(result.stdout.data == b"a\0\xff\n", f"standard output was {result.stdout.data!r}")
    expect(result.stderr.data == b"b\xfe", f"standard error was {result.stderr.data!r}")


@promise()
async def standard_input(lab: Lab) -> None:
    """Input arrives whole and ends; without input there is an end at once; unread is no harm."""
    box = await lab.sandbox()
    sent = secrets.token_bytes(300_000)
    echoed = await box.exec(["cat"], stdin=sent, timeout_s=20)
    expect(echoed.stdout.data == sent, f"{echoed.stdout.total} of {len(sent)} bytes came back")
    expect((await box.exec(["cat"], timeout_s=20)).ok, "cat waits for input that nobody sends")
    unread = await box.exec(["true"], stdin=bytes(2**20), timeout_s=20)
    expect(unread.ok, f"a command that reads no input ended as {unread.outcome}")


@promise()
async def large_output(lab: Lab) -> None:
    """Of large output head and tail are kept, and its true length."""
    box = await lab.sandbox()
    script = "echo first; head -c 3000000 /dev/zero | tr '\\000' x; echo last"
    result = await succeed(box, script, limits=ExecLimits(output_bytes=2**16))
    out = result.stdout
    expect(out.total == 3_000_011, f"{out.total} bytes were counted, not 3000011")
    expect(out.truncated, "the capture does not say that it is not whole")
    expect(len(out.data) <= 2**16 + 256, f"{len(out.data)} bytes were kept, not 65536")
    expect(out.data.startswith(b"first\nx"), "the head is missing")
    expect(out.data.endswith(b"x" + b"last\n"), "the tail is missing")


@promise()
async def output_flood(lab: Lab) -> None:
    """A command that floods is killed, with what it started, and is told apart."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    script = f"{heart(mark)} & yes"
    result = await box.exec(
        ["sh", "-c", script, mark],
        timeout_s=40,
        limits=ExecLimits(output_bytes=4096, flood_bytes=2**21),
    )
    expect(result.outcome is Outcome.OUTPUT, f"a flood ended as {result.outcome}")
    expect(result.stdout.total > 2**21, f"it was killed after {result.stdout.total} bytes")
    await gone([mark], "after a flood")
    expect(not await beats(box, hoped=False), "what it started goes on")


@promise()
async def timeout(lab: Lab) -> None:
    """When its time is over nothing that a command started survives, and its output is kept."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    script = (
        "echo begun\n"
        f"{heart(mark, 'beat1')} &\n"
        f"({heart(mark, 'beat2')} &)\n"
        f"(set -m; {heart(mark, 'beat3')} &)\n"
        f"if command -v setsid >/dev/null; then (setsid {heart(mark, 'beat4')} &); fi\n"
        "trap '' TERM; while :; do sleep 1; done"
    )
    result = await box.exec(["sh", "-c", script, mark], timeout_s=1.5)
    expect(result.outcome is Outcome.TIMEOUT, f"it ended as {result.outcome}")
    expect(1.4 < result.usage.wall_s < 15, f"it took {result.usage.wall_s:.1f} s, not 1.5 s")
    expect(result.stdout.data == b"begun\n", "what it had said is lost")
    await gone([mark], "after the time was over")
    for number in range(1, 5):
        if await beats(box, f"beat{number}", hoped=False):
            raise Broken(f"descendant {number} writes on after the time was over")
    await succeed(box, "true")


@promise()
async def left_running(lab: Lab) -> None:
    """What a command leaves running goes on, and is not waited for."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    result = await succeed(box, f"{heart(mark)} & echo done", timeout_s=10)
    expect(result.stdout.data == b"done\n", f"it said {result.stdout.data!r}")
    expect(await beats(box, hoped=True), "what was left running has ended")
    await box.close()
    await gone([mark], "after close")


@promise()
async def environment(lab: Lab) -> None:
    """A command has the specification's environment, its own over it, and not the manager's."""
    box = await lab.sandbox(env=(("FROM_SPEC", "spec"), ("BOTH", "spec")))
    result = await succeed(box, "env", env={"BOTH": "exec", "ODD": "a=b 'c'"})
    lines = [line.partition("=") for line in result.stdout.text.splitlines()]
    seen = {name: value for name, _, value in lines}
    expect(seen.get("FROM_SPEC") == "spec", "the specification's environment is missing")
    expect(seen.get("BOTH") == "exec", "the command's environment does not win")
    expect(seen.get("ODD") == "a=b 'c'", f"a value came out as {seen.get('ODD')!r}")
    expect(bool(seen.get("PATH")), "there is no PATH")
    leaked = [
        name
        for name, value in seen.items()
        if name not in _SHARED_NAMES and value and os.environ.get(name) == value
    ]
    leaked = [name for name in leaked if not name.startswith("LC_")]
    expect(not leaked, f"the manager's environment is seen: {', '.join(leaked)}")


@promise()
async def working_directory(lab: Lab) -> None:
    """Commands start in the working directory, or where they are told, relative to it."""
    box = await lab.sandbox()
    await succeed(box, "mkdir -p one/two; echo here > one/two/file")
    expect(
        await box.get_file("one/two/file") == b"here\n",
        "commands and files do not mean the same directory",
    )
    for cwd in ("one/two", f"{lab.spec.workdir}/one/two"):
        result = await box.exec(["cat", "file"], cwd=cwd)
        expect(result.stdout.data == b"here\n", f"cwd={cwd!r} is not where it says")
    lost = await box.exec(["true"], cwd="no/such")
    expect(lost.exit_code in (126, 127), f"in a missing directory it ended with {lost.exit_code}")


@promise()
async def missing_program(lab: Lab) -> None:
    """A missing program is exit code 127, and one that cannot be executed 126."""
    box = await lab.sandbox()
    await box.put_file("plain", b"no program")
    for program, code in (("no-such-program-here", 127), ("/no/such", 127), ("./plain", 126)):
        result = await box.exec([program])
        expect(
            (result.outcome, result.exit_code) == (Outcome.RESULT, code),
            f"{program!r} ended as {result.outcome} with {result.exit_code}, not {code}",
        )


@promise()
async def arguments(lab: Lab) -> None:
    """Arguments arrive as they are; too many are an error that says so."""
    box = await lab.sandbox()
    sent = ["a b", "", "*", "$HOME", "'\"", "\u00fc", "new\nline", "-n"]
    result = await succeed(box, 'for a; do printf "%s|" "$a"; done', *sent)
    wanted = "".join(f"{word}|" for word in sent).encode()
    expect(result.stdout.data == wanted, f"they arrived as {result.stdout.data!r}")
    for argv in ([], ["true", "x" * _HUGE]):
        try:
            refused = await box.exec(argv)
        except UsageError:
            continue
        expect(
            refused.exit_code == 126,
            f"{len(argv)} arguments that cannot be given ended with {refused.exit_code}",
        )
    await succeed(box, "true")


@promise()
async def commands_at_once(lab: Lab) -> None:
    """Commands run side by side in one sandbox, and each gets its own result."""
    box = await lab.sandbox()

    async def one(number: int) -> Result:
        script = f"sleep 0.3; cat; echo {number}; exit {number}"
        return await box.exec(["sh", "-c", script], stdin=f"in{number} ".encode(), timeout_s=30)

    results = await asyncio.gather(*(one(number) for number in range(8)))
    for number, result in enumerate(results):
        expect(
            (result.exit_code, result.stdout.text) == (number, f"in{number} {number}\n"),
            f"command {number} got {result.exit_code} and {result.stdout.text!r}",
        )


@promise()
async def cancellation(lab: Lab) -> None:
    """A command whose caller was cancelled leaves nothing running, and the sandbox is well."""
    box = await lab.sandbox()
    mark = f"hr-{secrets.token_hex(6)}"
    script = f"({heart(mark)} &)\nwhile :; do sleep 1; done"
    running = asyncio.ensure_future(box.exec(["sh", "-c", script, mark], timeout_s=60))
    if not await beats(box, hoped=True):
        raise Broken("a command did not begin")
    running.cancel()
    await asyncio.wait([running], timeout=20)
    expect(running.cancelled(), "it was not cancelled in 20 s")
    await gone([mark], "after cancellation")
    expect(not await beats(box, hoped=False), "what it started writes on")
    await box.health()
    await succeed(box, "true")


@promise()
async def health(lab: Lab) -> None:
    """A living sandbox says so, knows its name, and results carry its epoch."""
    id = lab.new_id()
    box = lab.keep(await lab.backend.create(lab.spec, id=id))
    await box.health()
    expect(box.id == id, f"it calls itself {box.id!r}")
    expect(box.spec == lab.spec, "it has another specification than it was made to")
    result = await succeed(box, "true")
    expect(result.epoch == box.epoch, f"epoch {result.epoch} in a result of epoch {box.epoch}")
    expect(result.usage.wall_s > 0, "a command took no time")


PROMISES = (
    *(exit_codes, signals, streams, standard_input, large_output, output_flood, timeout),
    *(left_running, environment, working_directory, missing_program, arguments),
    *(commands_at_once, cancellation, health),
)

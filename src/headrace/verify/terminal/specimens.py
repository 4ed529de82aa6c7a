"""Small tasks for a shell, the script that does each, and scripts that do not."""

from __future__ import annotations

from headrace.types import Json
from headrace.verify.kinds import Specimen, Specimens
from headrace.verify.terminal.verifier import FinalState

__all__ = ["specimens"]


def _sh(script: str) -> str:
    return f"```sh\n{script}\n```\n"


_LOG = """\
10.0.0.1 GET /a 200
10.0.0.2 GET /b 404
10.0.0.1 GET /c 500
10.0.0.3 GET /a 200
10.0.0.1 GET /a 200
"""


def _count() -> Specimen:
    checks: Json = [
        {"kind": "equals", "path": "counts.txt", "content": "10.0.0.1 3\n10.0.0.2 1\n10.0.0.3 1\n"},
        {"kind": "equals", "path": "access.log", "content": _LOG},
        {"kind": "processes"},
    ]
    return Specimen(
        prompt="Write counts.txt: each address of access.log with how often it occurs, separated "
        "by a space, in the order of the addresses. Leave the log as it is, and no process.",
        answer={"files": {"access.log": _LOG}, "checks": checks, "replay": True},
        reference=_sh(
            "cut -d' ' -f1 access.log | sort | uniq -c | awk '{print $2,$1}' > counts.txt"
        ),
        wrong=(
            _sh("cut -d' ' -f1 access.log | sort | uniq -c > counts.txt"),
            _sh("cut -d' ' -f1 access.log | sort | uniq -c | awk '{print $2,$1}'"),
            _sh(
                "cut -d' ' -f1 access.log | sort | uniq -c | awk '{print $2,$1}' > counts.txt\n"
                "sleep 100 &"
            ),
            _sh(
                "awk '{n[$1]++} END {for (a in n) print a, n[a]}' access.log | sort > counts.txt\n"
                "echo $RANDOM > noise"
            ),
        ),
        right=(
            _sh(
                "cut -d' ' -f1 access.log | sort | uniq -c | awk '{print $2,$1}' > counts.txt\n"
                "exit 3"
            ),
            _sh("awk '{n[$1]++} END {for (a in n) print a, n[a]}' access.log | sort > counts.txt"),
        ),
    )


_CHECK_PYTHON = """\
import os
right = sorted(os.listdir("/workspace/keys")) == ["a.pem", "b.pem"]
print(os.environ["HEADRACE_NONCE"], "pass" if right else "fail")
"""


def _modes() -> Specimen:
    checks: Json = [
        {"kind": "mode", "path": "keys", "mode": "755"},
        {"kind": "absent", "path": "a.pem"},
        {"kind": "absent", "path": "b.pem"},
        {"kind": "mode", "path": "keys/a.pem", "mode": "644"},
        {"kind": "checker", "language": "python", "script": _CHECK_PYTHON},
    ]
    return Specimen(
        prompt="Move the two .pem files into a new directory keys (755), readable for all (644).",
        answer={
            "files": {"a.pem": "alpha\n", "b.pem": "beta\n"},
            "modes": {"a.pem": "600", "b.pem": "600"},
            "checks": checks,
        },
        reference=_sh("mkdir -m 755 keys && mv *.pem keys && chmod 644 keys/*.pem"),
        wrong=(
            _sh("mkdir -m 755 keys && cp *.pem keys && chmod 644 keys/*.pem"),
            _sh("mkdir -m 755 keys && mv *.pem keys"),
            _sh("mkdir keys; ln -s /proc/self/cmdline keys/a.pem; rm *.pem"),
        ),
    )


_SETTINGS = '{"name": "box", "limits": {"cpus": 1, "users": ["ann"]}}\n'


def _settings() -> Specimen:
    checks: Json = [
        {"kind": "json", "path": "settings.json", "pointer": "/limits/cpus", "value": 4},
        {
            "kind": "json",
            "path": "settings.json",
            "pointer": "/limits/users",
            "value": ["ann", "bo"],
        },
        {"kind": "json", "path": "settings.json", "pointer": "/name", "value": "box"},
        {"kind": "exists", "path": "settings.json"},
        {
            "kind": "checker",
            "script": 'n="$HEADRACE_NONCE"\n'
            "if grep -q bo /workspace/settings.json\n"
            'then echo "$n pass"; else echo "$n fail"; fi\n',
        },
    ]
    program = (
        "python3 - <<'END'\nimport json\nwith open('settings.json') as file:\n"
        "    settings = json.load(file)\nsettings['limits']['cpus'] = {cpus}\n"
        "settings['limits']['users'].append('bo')\n"
        "with open('settings.json', 'w') as file:\n    json.dump(settings, file)\nEND"
    )
    return Specimen(
        prompt="In settings.json set limits.cpus to 4 and add bo to limits.users.",
        answer={"files": {"settings.json": _SETTINGS}, "checks": checks},
        reference=_sh(program.replace("{cpus}", "4")),
        wrong=(
            _sh(program.replace("{cpus}", "'4'")),
            _sh(program.replace("{cpus}", "True")),
            _sh('echo \'{"limits": {"cpus": 4, "users": ["ann", "bo"]}}\' > settings.json'),
        ),
        right=(_sh('sed -i \'s/"cpus": 1/"cpus": 4.0/; s/"ann"/"ann", "bo"/\' settings.json'),),
    )


def _program() -> Specimen:
    checks: Json = [
        {
            "kind": "output",
            "argv": ["./reverse"],
            "stdin": "stressed\nabc\n",
            "stdout": "desserts\ncba",
        },
        {"kind": "output", "argv": ["./reverse"], "stdin": "", "stdout": ""},
        {"kind": "matches", "path": "reverse", "pattern": "^#!"},
        {"kind": "mode", "path": "reverse", "mode": "755"},
    ]
    return Specimen(
        prompt="Write an executable script `reverse` (755, with a #! line) that prints each line "
        "of its input backwards.",
        answer={"checks": checks},
        reference=_sh("printf '#!/bin/sh\\nexec rev\\n' > reverse; chmod 755 reverse"),
        wrong=(
            _sh("printf '#!/bin/sh\\nexec tac\\n' > reverse; chmod 755 reverse"),
            _sh("printf '#!/bin/sh\\nexec rev\\n' > reverse; chmod 644 reverse"),
        ),
    )


def specimens() -> Specimens:
    """Four tasks: a count, moved files, edited JSON, a program."""
    items = (_count(), _modes(), _settings(), _program())
    return Specimens(FinalState.ref.id, FinalState(), items)

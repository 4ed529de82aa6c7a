"""Which system calls a sandbox may not make.

A deny-list on top of what already holds there: no capabilities, no new privileges, an
unprivileged user. It closes the doors that need no privilege: new user namespaces, kernel
interfaces with a history (io_uring, bpf, userfaultfd, keyrings), tracing, and socket families
that reach past the network namespace (vsock) or into seldom used kernel code.
"""

from __future__ import annotations

import platform

from headrace.types import Json

__all__ = ["profile"]

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97

_FORBIDDEN = (
    *("acct", "add_key", "adjtimex", "bpf", "clock_adjtime", "clock_settime"),
    *("create_module", "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount"),
    *("fsopen", "fspick", "get_kernel_syms", "init_module", "ioperm", "iopl", "kcmp"),
    *("kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr"),
    *("move_mount", "move_pages", "mq_open", "name_to_handle_at", "nfsservctl"),
    *("open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root"),
    *("process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "query_module"),
    *("quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname"),
    *("setns", "settimeofday", "stime", "swapoff", "swapon", "sysfs", "syslog", "umount"),
    *("umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old"),
)
_UNKNOWN = ("io_uring_enter", "io_uring_register", "io_uring_setup", "clone3")
"""Answered as if the kernel had never heard of them, so that libraries take the older call."""

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""Calls by any other convention of the processor (32-bit ones on x86-64) end the process."""

_NEW_NAMESPACES = (0x10000000, 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x2000000)
_FAMILIES = (40, 38, 17, 29, 31, 44)
"""vsock, alg, packet, can, bluetooth, xdp."""


def profile() -> dict[str, Json]:
    """The `linux.seccomp` section of an OCI bundle."""
    flags: list[Json] = [
        {
            "names": ["clone"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": _EPERM,
            "args": [{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}],
        }
        for bit in _NEW_NAMESPACES
    ]
    families: list[Json] = [
        {
            "names": ["socket", "socketpair"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": _EAFNOSUPPORT,
            "args": [{"index": 0, "value": family, "op": "SCMP_CMP_EQ"}],
        }
        for family in _FAMILIES
    ]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_ARCHITECTURES[platform.machine()]],
        "syscalls": [
            {"names": list(_FORBIDDEN), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            {"names": list(_UNKNOWN), "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            *flags,
            *families,
        ],
    }

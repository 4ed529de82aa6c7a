"""The registry: backends by entry point, chosen or refused with reasons."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.sandbox.registry import (
    GROUP,
    choose,
    find,
    fitting,
    spec_digest,
    spec_of,
)
from headrace.sandbox.spec import (
    BoxLimits,
    Isolation,
    Mount,
    Network,
    SandboxRefused,
    SandboxSpec,
)
from headrace.types import SandboxNeed
from sandbox_support import SPEC, FakeBackend


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{value}", group=GROUP)


def oci() -> FakeBackend:
    return FakeBackend(name="oci", unavailable="no runtime: apt-get install crun")


def sandlock() -> FakeBackend:
    return FakeBackend(name="sandlock", isolation=Isolation.PROCESS)


def podman() -> FakeBackend:
    return FakeBackend(name="podman")


def plain() -> FakeBackend:
    return FakeBackend(name="subprocess", isolation=Isolation.TRUSTED)


def cloud() -> FakeBackend:
    return FakeBackend(name="a-cloud", isolation=Isolation.VIRTUAL_MACHINE)


def misnamed() -> FakeBackend:
    return FakeBackend(name="something else")


def raising() -> FakeBackend:
    raise RuntimeError("no licence")


def no_backend() -> int:
    return 3


POINTS = [
    point("subprocess", "plain"),
    point("a-cloud", "cloud"),
    point("podman", "podman"),
    point("sandlock", "sandlock"),
    point("oci", "oci"),
]


def test_backends_come_in_order_of_preference_and_those_of_others_last() -> None:
    names = [backend.name for backend in find(POINTS).backends]
    assert names == ["oci", "sandlock", "podman", "subprocess", "a-cloud"]


def test_a_broken_entry_point_is_reported_and_hurts_nobody_else() -> None:
    bad = [
        point("absent", "nothing_here"),
        point("raising", "raising"),
        point("number", "no_backend"),
        point("misnamed", "misnamed"),
        EntryPoint(name="module", value="no_such_module_of_ours:x", group=GROUP),
        point("podman", "podman"),
    ]
    found = find([*POINTS, *bad])
    assert [backend.name for backend in found.backends][:2] == ["oci", "sandlock"]
    whys = {item.name: item.why for item in found.broken}
    assert set(whys) == {"absent", "raising", "number", "misnamed", "module", "podman"}
    assert whys["raising"] == "RuntimeError: no licence"
    assert "another distribution" in whys["podman"]
    with pytest.raises(SandboxRefused, match="raising: broken: RuntimeError: no licence"):
        choose(SPEC, ["raising"], points=[*POINTS, *bad])


def test_the_best_that_works_and_is_strong_enough_is_chosen() -> None:
    assert choose(SPEC, points=POINTS).name == "podman"  # oci is unavailable, sandlock too weak
    process = replace(SPEC, isolation=Isolation.PROCESS)
    assert choose(process, points=POINTS).name == "sandlock"
    machine = replace(SPEC, isolation=Isolation.VIRTUAL_MACHINE)
    assert choose(machine, points=POINTS).name == "a-cloud"


def test_names_restrict_the_choice_and_set_its_order() -> None:
    assert choose(SPEC, ["a-cloud", "podman"], points=POINTS).name == "a-cloud"
    with pytest.raises(UsageError) as unknown:
        choose(SPEC, ["podmann"], points=POINTS)
    assert unknown.value.hint == "did you mean podman?"


def test_a_refusal_names_for_every_backend_what_it_lacks_or_why_it_is_unavailable() -> None:
    with pytest.raises(SandboxRefused) as refusal:
        choose(replace(SPEC, isolation=Isolation.USER_KERNEL), points=POINTS[:1] + POINTS[2:])
    for name in ("oci", "sandlock", "podman", "subprocess"):
        assert f"{name}: lacks isolation user-kernel" in refusal.value.what
    with pytest.raises(SandboxRefused, match="oci: no runtime: apt-get install crun"):
        choose(SPEC, ["oci"], points=POINTS)
    with pytest.raises(SandboxRefused, match="none is installed"):
        choose(SPEC, points=[])
    with pytest.raises(SandboxRefused, match="network full"):
        choose(replace(SPEC, network=Network(kind="full")), points=POINTS)


def test_child_processes_are_chosen_for_what_is_trusted_only() -> None:
    only = [point("subprocess", "plain")]
    assert choose(replace(SPEC, isolation=Isolation.TRUSTED), points=only).name == "subprocess"
    for names in (None, ["subprocess"]):
        with pytest.raises(SandboxRefused, match=r"it is trusted"):
            choose(replace(SPEC, isolation=Isolation.PROCESS), names, points=only)


def test_what_lacks_something_is_not_asked_whether_it_works() -> None:
    class Costly(FakeBackend):
        def available(self) -> str | None:
            raise AssertionError("asked")

    choice = fitting([Costly(isolation=Isolation.PROCESS), FakeBackend(name="b")], SPEC)
    assert [backend.name for backend in choice.backends] == ["b"]


def test_the_need_of_a_task_becomes_a_specification() -> None:
    need = SandboxNeed(isolation="user-kernel", image="dir:/images/x", memory_mb=2048)
    spec = spec_of(need, limits=BoxLimits(processes=16), lifetime_s=60.0)
    assert spec.isolation is Isolation.USER_KERNEL
    assert spec.image == "dir:/images/x"
    assert spec.limits == BoxLimits(memory_mb=2048, disk_mb=256, processes=16)
    assert spec_of(SandboxNeed(isolation="process")).image == "host"
    assert spec_of(SandboxNeed(isolation="process", memory_mb=64)).limits.disk_mb == 32
    with pytest.raises(UsageError):
        spec_of(SandboxNeed(isolation="process", memory_mb=1))


def test_equal_specifications_have_equal_digests_and_others_do_not() -> None:
    mounted = SandboxSpec(mounts=(Mount(Path("/data"), "/data"),))
    assert spec_digest(mounted) == spec_digest(SandboxSpec(mounts=(Mount(Path("/data"), "/data"),)))
    others = [SPEC, mounted, replace(SPEC, env=(("A", "1"),)), replace(SPEC, lifetime_s=1.0)]
    assert len({spec_digest(spec) for spec in others}) == len(others)

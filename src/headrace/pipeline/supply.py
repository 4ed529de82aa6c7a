"""From the source of tasks to the attempts that a step is trained on.

Two schedules over one flow. In `lockstep`, step s is trained on batch s, played under the
weights of step s - 1 - max_lag: which attempts a step sees depends on nothing but the recipe,
so a resumed run repeats it to the bit. In `free` running whatever is ready is trained on, as
far as no group grows too old (`slots.choose`); groups are admitted whenever a slot is free,
weights change while attempts are being written, and each token carries its version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.algorithms.advantages import has_spread
from headrace.data.source import TaskSource
from headrace.environments.single_turn import Group
from headrace.errors import StorageError
from headrace.pipeline.flow import Flow
from headrace.pipeline.lengths import Lengths
from headrace.pipeline.slots import Choice, Slots, choose
from headrace.recipe import Recipe
from headrace.store.codec import task_from_json, task_to_json
from headrace.store.ledger import Consumed
from headrace.store.records import Admitted
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json, Trajectory

__all__ = ["Supply", "Wave", "groups_missing"]

HONEYPOT = "honeypot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Judged attempts that a step takes, by group, and those among them that are trained on.

    `replayed` attempts were played by an earlier life of the run.
    """

    key: str
    replayed: int
    groups: tuple[tuple[Trajectory, ...], ...]
    effective: tuple[tuple[Trajectory, ...], ...]

    @property
    def attempts(self) -> list[Trajectory]:
        return [attempt for group in self.groups for attempt in group]

    @property
    def trained(self) -> list[Trajectory]:
        return [attempt for group in self.effective for attempt in group]


class Supply:
    """Admits groups, has them played and judged, and hands out what a step is trained on.

    `version` says which weights are sampled from now. Call `begin` once inside the flow.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        source: TaskSource,
        slots: Slots,
        flow: Flow,
        store: TrajectoryStore,
        lengths: Lengths,
        version: Callable[[], int],
    ) -> None:
        self._recipe, self._source, self._slots = recipe, source, slots
        self._flow, self._store, self._lengths = flow, store, lengths
        self._version = version
        self._free = recipe.play.schedule == "free"
        self._groups: dict[str, Group] = {}
        self._batches: dict[int, list[str]] = {}
        self._baits: dict[int, Group] = {}
        self._refills = 0
        self._ready: dict[str, None] = {}
        self._refused: dict[str, str] = {}
        self._plan: dict[int, list[Consumed]] = {}

    # --- admission -------------------------------------------------------------------------

    async def begin(self) -> None:
        """Take up what an earlier life left, and start to play."""
        left = [*self._groups.values(), *self._baits.values()]
        if not self._free and not all(self._recorded(group) for group in left):
            raise StorageError(
                "attempts that were played ahead of the last checkpoint are not on disk",
                where=str(self._store.directory),
                hint="restore the directory from a backup, or start a new run",
            )
        for group in left:
            await self._enter([group], batch=None)
        if self._free:
            self._flow.play_continuously()
            self._fill()

    async def ahead(self, step: int) -> None:
        """Play what `step` needs and, as far as the lag allows, what later steps will."""
        self._refills = 0
        if self._free:
            self._fill()
            await self._bait(step)
            return
        last = min(step + self._recipe.play.max_lag, self._recipe.steps)
        for number in range(max(self._batches, default=step - 1) + 1, last + 1):
            await self._batch(number)

    async def _batch(self, step: int) -> None:
        key = f"{step:06d}:0"
        groups = [self._admit(f"{key}.{i}") for i in range(self._recipe.play.groups)]
        self._batches[step] = [group.id for group in groups]
        await self._enter(groups, batch=key)
        await self._bait(step)

    async def _bait(self, step: int) -> None:
        """The step's honeypot, if it is due one: in no slot, for nobody is trained on it."""
        bait = self._honeypot(step)
        if bait is not None and step not in self._baits:
            self._baits[step] = bait
            await self._enter([bait], batch=None if self._free else f"{step:06d}:{HONEYPOT}")

    def _admit(self, name: str) -> Group:
        """Draw the next task and take a slot for its group."""
        play = self._recipe.play
        group = Group(name, self._source.next(), play.group_size, play.spare)
        self._slots.admit(name, self._version())
        self._groups[name] = group
        return group

    def _honeypot(self, step: int) -> Group | None:
        """The step's honeypot group, if one is due and a domain has one to offer."""
        every = self._recipe.verify.honeypot_every
        if every is None or step % every != 1 % every:
            return None
        task = self._source.honeypot(step)
        name = f"{step:06d}:{HONEYPOT}.0"
        return None if task is None else Group(name, task, self._recipe.play.group_size)

    async def _enter(self, groups: Sequence[Group], *, batch: str | None) -> None:
        """Let groups into the flow: as played where all of them are on disk, else to be played.

        A batch of which only a part was written is played again as a whole, in the same
        company; what was written of it stays.
        """
        recorded = {group.id: self._recorded(group) for group in groups}
        if all(recorded.values()):
            for group in groups:
                self._flow.readmit(group, recorded[group.id] or [])
            return
        self._flow.admit(self._lengths.longest_first(groups), batch=batch)
        if batch is not None:
            await self._flow.play(batch)

    def _recorded(self, group: Group) -> list[Trajectory] | None:
        """The group's attempts if they are on disk from an earlier life of the run."""
        attempts = self._store.wave(group.id)
        if attempts is not None and any(t.task.id != group.task.id for t in attempts):
            raise StorageError(
                f"group {group.id} holds another task than the source draws now",
                where=str(self._store.directory),
                hint="was a task pack upgraded since? install the version in env.json, "
                "or start a new run",
            )
        return attempts

    def _fill(self) -> None:
        """Admit groups while there are slots, and steps that will need them."""
        trained = self._slots.ledger()["trained"]
        needed = self._recipe.steps * self._recipe.play.groups - trained
        fresh: list[Group] = []
        while self._slots.free and len(self._slots.held) < needed:
            fresh.append(self._admit(f"{self._source.position:08d}"))
        if fresh:
            self._write_down(fresh)
            self._flow.admit(self._lengths.longest_first(fresh))

    def _write_down(self, groups: Sequence[Group]) -> None:
        """Put on disk that `groups` are admitted, before anything comes of it."""
        version = self._version()
        landed = [
            self._store.append_nowait(
                Admitted(
                    group=group.id,
                    size=group.size,
                    task=group.task,
                    position=int(group.id),
                    version=version,
                )
            )
            for group in groups
        ]
        for future in landed:
            future.result()

    # --- readiness -------------------------------------------------------------------------

    def arrived(self, group: Group, attempts: Sequence[Trajectory]) -> None:
        """Called by the flow when a group's last verdict is there."""
        if not self._free or group.id not in self._groups or group.id in self._refused:
            return
        reason = self._objection(attempts)
        if reason is None:
            self._ready[group.id] = None
        else:
            self._refused[group.id] = reason
            self._slots.rejected(group.id, reason)

    def _objection(self, attempts: Sequence[Trajectory]) -> str | None:
        """Why a group is not to be trained on, if so."""
        if not self._recipe.algorithm.dynamic_sampling:
            return None
        if has_spread([attempt.score for attempt in attempts]):
            return None
        judged = any(attempt.score is not None for attempt in attempts)
        return "no spread" if judged else "unjudged"

    # --- what a step takes -----------------------------------------------------------------

    async def wave(self, step: int, missing: int) -> Wave:
        """The step's next attempts, of `missing` groups or, where groups are refused, fewer."""
        key = f"{step:06d}:{self._refills}"
        if step in self._plan:
            chosen, refused = await self._planned(step)
        elif self._free:
            chosen, refused = await self._chosen(missing)
        else:
            chosen, refused = await self._in_step(step, key, missing)
        self._refills += 1
        again = [name for name in [*chosen, *refused] if self._flow.was_played_before(name)]
        self._consume(step, chosen, refused)
        groups: dict[str, list[Trajectory]] = {name: [] for name in [*chosen, *refused]}
        for attempt in self._flow.take(list(groups)):
            groups[attempt.group].append(attempt)
        for name, attempts in groups.items():
            del self._groups[name]
            self._lengths.observe(attempts)
        return Wave(
            key=key,
            replayed=sum(len(groups[name]) for name in again),
            groups=tuple(tuple(attempts) for attempts in groups.values()),
            effective=tuple(tuple(groups[name]) for name in chosen),
        )

    def _consume(self, step: int, trained: Sequence[str], refused: Mapping[str, str]) -> None:
        """Put on disk what the step takes, before it is trained on."""
        by_reason: dict[str | None, list[str]] = {None: list(trained)} if trained else {}
        for name, reason in refused.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            version = self._version()
            self._store.append(
                Consumed(step=step, version=version, groups=tuple(names), reason=reason)
            )

    async def _in_step(self, step: int, key: str, missing: int) -> tuple[list[str], dict[str, str]]:
        """The batch of the step or, after it, a refill that is played now."""
        names = self._batches.pop(step, None)
        if names is None:
            groups = [self._admit(f"{key}.{i}") for i in range(missing)]
            names = [group.id for group in groups]
            await self._enter(groups, batch=key)
        await self._flow.ready(names)
        objections = {name: self._objection(self._flow.attempts(name)) for name in names}
        refused = {name: why for name, why in objections.items() if why is not None}
        for name, reason in refused.items():
            self._slots.rejected(name, reason)
        return [name for name in names if name not in refused], refused

    async def _chosen(self, missing: int) -> tuple[list[str], dict[str, str]]:
        """Ready groups, as the slots allow; those refused since the last time go with them."""
        limit = self._recipe.algorithm.refill_limit * self._recipe.play.groups

        def awaited() -> Sequence[str]:
            self._fill()
            return () if len(self._refused) >= limit else self._choice(missing).awaited

        await self._flow.until("groups that may be trained on", awaited)
        chosen = list(self._choice(missing).groups)
        refused, self._refused = self._refused, {}
        for name in chosen:
            del self._ready[name]
        return chosen, refused

    def _choice(self, missing: int) -> Choice:
        return choose(
            self._slots.held,
            self._ready.keys(),
            version=self._version(),
            groups=missing,
            max_lag=self._slots.max_lag,
        )

    async def _planned(self, step: int) -> tuple[list[str], dict[str, str]]:
        """What this step was trained on in a life that was lost: the same again."""
        plan = self._plan.pop(step)
        trained = [name for record in plan if record.trained for name in record.groups]
        refused = {name: r.reason for r in plan if r.reason is not None for name in r.groups}
        await self._flow.ready([*trained, *refused])
        for name in trained:
            self._ready.pop(name, None)
        for name, reason in refused.items():
            if self._refused.pop(name, None) is None:
                self._ready.pop(name, None)
                self._slots.rejected(name, reason)
        return trained, refused

    async def honeypots(self, step: int) -> list[Trajectory]:
        """The judged attempts at the step's honeypot; running free, at those that are ready."""
        if self._free:
            due = [s for s, bait in self._baits.items() if self._flow.is_ready(bait.id)]
        else:
            due = [s for s in self._baits if s <= step]
        names = [self._baits.pop(s).id for s in due]
        await self._flow.ready(names)
        return self._flow.take(names)

    def release(self, attempts: Sequence[Trajectory], version: int) -> None:
        """Give back the slots of groups that policy `version` was trained on."""
        for name in dict.fromkeys(attempt.group for attempt in attempts):
            self._slots.trained(name, version)
        if self._free:
            self._fill()

    # --- over a kill -----------------------------------------------------------------------

    def state(self) -> dict[str, Json]:
        return {
            "lengths": self._lengths.state(),
            "slots": self._slots.ledger(),
            "held": [
                {**_group_to_json(self._groups[name]), "version": version}
                for name, version in self._slots.held.items()
            ],
            "refused": [
                {**_group_to_json(self._groups[name]), "reason": reason}
                for name, reason in self._refused.items()
            ],
            "batches": {str(step): names for step, names in self._batches.items()},
            "baits": {str(step): _group_to_json(bait) for step, bait in self._baits.items()},
        }

    def restore(self, state: Mapping[str, Json], step: int) -> None:
        """Take over a checkpoint's state after `step` steps, and what the store knows beyond it.

        Running free, groups that were admitted after the checkpoint are held again, and steps
        whose training was lost are trained on the same groups again, in which nothing is
        played twice. In lockstep both come about by themselves.
        """
        self._lengths.restore(state["lengths"])
        held: dict[str, int] = {}
        for entry in state["held"]:
            group = _group_from_json(entry)
            self._groups[group.id], held[group.id] = group, int(entry["version"])
        for entry in state["refused"]:
            group = _group_from_json(entry)
            self._groups[group.id], self._refused[group.id] = group, str(entry["reason"])
        self._batches = {int(key): list(names) for key, names in state["batches"].items()}
        self._baits = {int(key): _group_from_json(v) for key, v in state["baits"].items()}
        if self._free:
            for name in self._store.groups():
                admitted = self._store.admitted(name)
                if admitted is not None and admitted.position >= self._source.position:
                    self._source.skip(admitted.task)
                    spare = self._recipe.play.spare
                    self._groups[name] = Group(name, admitted.task, admitted.size, spare)
                    held[name] = admitted.version
            for entry in self._store.ledger():
                if entry.consumed.step > step and not entry.void:
                    self._plan.setdefault(entry.consumed.step, []).append(entry.consumed)
        self._store.rewind_consumed(step)
        self._slots.restore(state["slots"], held)


def groups_missing(
    recipe: Recipe, everything: Sequence[Trajectory], effective: Sequence[Trajectory]
) -> int:
    """How many groups a step still has to take, given the attempts it has taken."""
    wanted, size = recipe.play.groups, recipe.play.group_size
    if not recipe.algorithm.dynamic_sampling:
        return wanted - len(everything) // size
    budget = int(recipe.algorithm.refill_limit * wanted) - len(everything) // size
    return max(0, min(wanted - len(effective) // size, budget))


def _group_to_json(group: Group) -> dict[str, Json]:
    task = task_to_json(group.task)
    return {"id": group.id, "size": group.size, "spare": group.spare, "task": task}


def _group_from_json(value: Json) -> Group:
    return Group(value["id"], task_from_json(value["task"]), value["size"], value["spare"])

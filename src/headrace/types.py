"""The vocabulary: what flows through the loop, from a task to the sample a learner eats.

Everything else in headrace speaks in these words and meets here. No torch, no I/O.
Arrays are one-dimensional numpy arrays unless a docstring says otherwise:
ids are int32, log-probabilities are float32 in nats, masks are bool.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "Ending",
    "Example",
    "Failure",
    "Fault",
    "Floats",
    "Ids",
    "ImagePart",
    "Json",
    "Limits",
    "Mask",
    "Message",
    "Part",
    "Role",
    "Sample",
    "SandboxNeed",
    "Split",
    "StopReason",
    "Support",
    "Task",
    "TextPart",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "Verdict",
    "VerdictPart",
    "VerifierRef",
    "VersionSpan",
    "canonical_json",
    "content_hash",
    "split_of",
]

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Json = Any
"""A JSON value: None, bool, int, float, str, or a list or string-keyed dict of the same."""

Split = Literal["train", "heldout"]
Role = Literal["system", "user", "assistant", "tool"]
Ending = Literal["finished", "truncated", "budget", "failed"]
Fault = Literal["policy", "verifier", "infrastructure", "task"]
StopReason = Literal["stop", "length"]


def canonical_json(value: Json) -> str:
    """The one spelling of a JSON value that is hashed: sorted keys, no spaces, no NaN.

    >>> canonical_json({"b": 1, "a": [1, 2]})
    '{"a":[1,2],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def content_hash(value: Json, *, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of a JSON value's canonical spelling."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


# --- tasks ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by content: the bytes live in the blob store under `digest` (SHA-256 hex)."""

    digest: str
    media_type: str = "image/png"


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the policy wrote it (`raw`) and as it was understood (`arguments`)."""

    id: str
    name: str
    raw: str
    arguments: Mapping[str, Json] | None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt.

    >>> Message.of("user", "What is 2 + 2?").text
    'What is 2 + 2?'
    """

    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, role: Role, text: str) -> Message:
        return cls(role, (TextPart(text),))

    @property
    def text(self) -> str:
        """The text parts joined; images leave nothing behind."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool offered to the policy; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class VerifierRef:
    """Which verifier judges a task: `id` names it, `version` changes whenever a score could."""

    id: str
    version: str


@dataclass(frozen=True, slots=True)
class SandboxNeed:
    """The least isolation a task accepts, weakest first: trusted, process, namespace, ..."""

    isolation: Literal["trusted", "process", "namespace", "user-kernel", "virtual-machine"]
    image: str | None = None
    memory_mb: int = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one attempt. `new_tokens` None leaves the choice to the recipe."""

    new_tokens: int | None = None
    turns: int = 1
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to do and how it is judged.

    `answer` is hidden from the policy: a JSON value that only the verifier reads.
    `problem` identifies the question independently of its phrasing; the split is a pure
    function of (domain, problem), so no phrasing of a held-out problem is ever trained on.
    `tier` is the difficulty, 0 the easiest.

    >>> task = Task(
    ...     domain="arithmetic",
    ...     problem="2+2",
    ...     tier=0,
    ...     split="train",
    ...     messages=(Message.of("user", "What is 2 + 2?"),),
    ...     verifier=VerifierRef("final-integer", "1"),
    ...     answer=4,
    ... )
    >>> task.id == replace(task, tier=3).id  # the id is the content, not the bookkeeping
    True
    """

    domain: str
    problem: str
    tier: int
    split: Split
    messages: tuple[Message, ...]
    verifier: VerifierRef
    answer: Json
    tools: tuple[ToolSpec, ...] = ()
    sandbox: SandboxNeed | None = None
    limits: Limits = Limits()
    lineage: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def id(self) -> str:
        """Content hash over domain, messages, tools, verifier and answer: 16 hex digits."""
        messages = [
            [m.role, [p.text if isinstance(p, TextPart) else p.digest for p in m.parts]]
            for m in self.messages
        ]
        tools = [[t.name, t.description, dict(t.parameters)] for t in self.tools]
        verifier = [self.verifier.id, self.verifier.version]
        return content_hash([self.domain, messages, tools, verifier, self.answer])


def split_of(domain: str, problem: str, *, heldout_share: float = 0.2) -> Split:
    """The split a problem belongs to, by content alone.

    The same problem lands on the same side in every run, process and machine; the share of
    held-out problems approaches `heldout_share` (0..1) as problems grow many.
    """
    digest = hashlib.sha256(canonical_json([domain, problem]).encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return "heldout" if position < heldout_share else "train"


# --- what was played -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Policy version `version` wrote `count` sampled tokens in a row (run-length form)."""

    version: int
    count: int


@dataclass(frozen=True, slots=True)
class Support:
    """The token ids that survived top-k, top-p and min-p at each sampled position, row by row.

    Row t is `ids[offsets[t]:offsets[t + 1]]`. The learner scores a token inside the set it
    was drawn from, so the probability ratio is 1 before the first update under any filter.

    >>> Support(offsets=np.array([0, 2, 3]), ids=np.array([5, 9, 7], np.int32)).row(0).tolist()
    [5, 9]
    """

    offsets: npt.NDArray[np.int64]
    ids: Ids

    def row(self, position: int) -> Ids:
        return self.ids[self.offsets[position] : self.offsets[position + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message as it really was, in tokens.

    Lengths: `ids` [n] and `sampled` [n] (True where the policy wrote the id); `logps` [k] and
    `sum(span.count for span in versions) == k` for the k sampled ids, in order. `logps` are
    under the distribution that was sampled from: after temperature and filters. A prompt turn
    has k = 0. `text` is the decoding shown to verifiers and people, never re-encoded.
    """

    role: Role
    text: str
    ids: Ids
    sampled: Mask
    logps: Floats
    versions: tuple[VersionSpan, ...] = ()
    temperature: float = 1.0
    support: Support | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason | None = None

    def __post_init__(self) -> None:
        count = int(self.sampled.sum())
        if len(self.ids) != len(self.sampled):
            raise ValueError(f"{len(self.ids)} ids but {len(self.sampled)} mask entries")
        if len(self.logps) != count or sum(s.count for s in self.versions) != count:
            raise ValueError(
                f"{count} sampled ids need as many log-probabilities and versions, got "
                f"{len(self.logps)} and {sum(s.count for s in self.versions)}"
            )
        if self.support is not None and len(self.support) != count:
            raise ValueError(f"{count} sampled ids but {len(self.support)} support rows")


@dataclass(frozen=True, slots=True)
class VerdictPart:
    """A named, weighted piece of a score; weight 0 is reported and not scored."""

    name: str
    value: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an attempt was judged. `score` None means "could not judge" and is never 0.

    `score` is in [0, 1]; `fault` says whose failure it is when there is none.

    >>> Verdict(score=1.0, verifier=VerifierRef("final-integer", "1")).solved
    True
    """

    score: float | None
    verifier: VerifierRef
    parts: tuple[VerdictPart, ...] = ()
    evidence: str = ""
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if self.score is None and self.fault is None:
            raise ValueError("a verdict without a score must say whose fault it is")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score {self.score} is outside [0, 1]")

    @property
    def solved(self) -> bool:
        """Full marks (to rounding)."""
        return self.score is not None and self.score >= 0.999


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong and where: a failure is data, and has an owner."""

    boundary: str
    message: str
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at a task: what was said, how it ended, how it was judged.

    Identity is carried, never inferred from position: `group` names the siblings that share a
    baseline, `attempt` (0..group size - 1) tells them apart. `timings` are in seconds.
    """

    task: Task
    group: str
    attempt: int
    seed: int
    turns: tuple[Turn, ...]
    ending: Ending
    verdict: Verdict | None = None
    failure: Failure | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    snapshots: tuple[str, ...] = ()
    provenance: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def id(self) -> str:
        return f"{self.group}/{self.attempt}"

    @property
    def score(self) -> float | None:
        return None if self.verdict is None else self.verdict.score

    @property
    def completion(self) -> str:
        """The text of the last assistant turn, or "" where the policy never spoke."""
        spoken = [turn.text for turn in self.turns if turn.role == "assistant"]
        return spoken[-1] if spoken else ""

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.logps) for turn in self.turns)

    def judged(self, verdict: Verdict) -> Trajectory:
        return replace(self, verdict=verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A recorded conversation in tokens: `ids` [n], `trainable` [n] (True: learn to write it).

    `key` is a content hash. Examples of one `group` belong together: a pair is one with `label` 1
    and one with -1 (`margin`: by how much better, 0 unknown); alone it has label 0, or says by
    1 or -1 whether it is desirable. `score` (0..1) is the verdict it had, if any. `lineage` says
    where it came from, down to the raw row or the attempt.

    >>> ids, mask = np.array([5, 9, 2], np.int32), np.array([False, True, True])
    >>> Example(key="a1", group="a1", source="chat.jsonl", ids=ids, trainable=mask).tokens
    2
    """

    key: str
    group: str
    source: str
    ids: Ids
    trainable: Mask
    label: float = 0.0
    margin: float = 0.0
    score: float | None = None
    replay: bool = False
    lineage: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def tokens(self) -> int:
        """How many tokens are learned from."""
        return int(self.trainable.sum())


# --- what the learner eats -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence with everything a learner needs, and nothing about how it came to be.

    All arrays have length n = len(ids) and speak of the token at the same index. Index 0 can
    never be trainable (nothing predicts it). Weights already hold the loss normaliser of the
    whole optimizer batch, so a learner only ever sums and any split gives the same gradient.

    - `trainable`: the policy wrote this token, and it counts;
    - `behaviour`, `reference`, `proximal`: log-probabilities under the sampling policy, the
      frozen reference and the policy at the start of this step (the latter two optional);
    - `advantage`: of the token, detached;
    - `policy_weight`, `cross_entropy_weight`, `kl_weight`, `entropy_weight`: per-token weight
      of each loss component, 0 where it does not apply.

    Losses over whole sequences read `weight` (this one's share, normalised like the others),
    `label` (1 preferred, -1 not, 0 neither; samples of one `group` are compared) and `margin`
    (by how much it is preferred, in the units of the data, 0 where nobody said).
    """

    ids: Ids
    trainable: Mask
    behaviour: Floats
    advantage: Floats
    policy_weight: Floats
    cross_entropy_weight: Floats
    kl_weight: Floats
    entropy_weight: Floats
    trajectory: str
    group: str
    version: int
    temperature: float = 1.0
    support: Support | None = None
    reference: Floats | None = None
    proximal: Floats | None = None
    images: tuple[str, ...] = ()
    weight: float = 0.0
    label: float = 0.0
    margin: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.ids)
        arrays = {
            "trainable": self.trainable,
            "behaviour": self.behaviour,
            "advantage": self.advantage,
            "policy_weight": self.policy_weight,
            "cross_entropy_weight": self.cross_entropy_weight,
            "kl_weight": self.kl_weight,
            "entropy_weight": self.entropy_weight,
        }
        for name, array in arrays.items():
            if len(array) != n:
                raise ValueError(f"{name} has length {len(array)}, ids have {n}")
        if n and bool(self.trainable[0]):
            raise ValueError("the first token has no prediction and cannot be trainable")
        if self.support is not None and len(self.support) != int(self.trainable.sum()):
            raise ValueError("support needs one row for each trainable token")

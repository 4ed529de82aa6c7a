"""Teachers of on-policy distillation: log-probabilities of given ids under another model.

A teacher is a model in this process or a server that scores token ids. Both give the teacher's
own distribution: temperature 1, whole vocabulary. Ids mean the same to teacher and student or
there is nothing to compare, so another tokenizer is refused, naming the first difference.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

import numpy as np
from transformers import PreTrainedTokenizerBase

from headrace.errors import InfrastructureError, ModelError, UsageError
from headrace.policy.cache import Progress
from headrace.policy.engine import TorchPolicy
from headrace.policy.load import load
from headrace.policy.scoring import token_logprobs
from headrace.recipe import LearnerSpec, ModelSpec
from headrace.types import Floats, Ids, Json, Sample

__all__ = [
    "EndpointTeacher",
    "LocalTeacher",
    "Patience",
    "Teacher",
    "first_difference",
    "open_teacher",
]

KEY_VARIABLE = "HEADRACE_TEACHER_KEY"
"""The environment variable with the key of a teacher's server, where it wants one."""

_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MOST_BYTES = 256 * 2**20
_CHUNK = 1 << 16
_LONGEST_PAUSE_S = 20.0


class Teacher(Protocol):
    """Scores what the student wrote."""

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """Per sample, the teacher's log-probabilities [n] of its trainable tokens; 0 elsewhere."""
        ...


def open_teacher(
    source: str,
    student: PreTrainedTokenizerBase,
    *,
    model: ModelSpec | None = None,
    learner: LearnerSpec | None = None,
    progress: Progress | None = None,
) -> Teacher:
    """The teacher that `source` names: a model source, or the http(s) address of a server.

    `http://host:8000/v1` or, where it serves several models, `http://host:8000/v1#MODEL`.
    `model` and `learner` say how a model in this process is held and how large its passes are.
    Raises ModelError for another tokenizer than the `student`'s (of a server: once it answers),
    UsageError for an address that is none, and what `headrace.policy.load.load` raises.
    """
    if source.startswith(("http://", "https://")):
        return EndpointTeacher(source, student)
    loaded = load(source, progress=progress)
    difference = first_difference(student, loaded.tokenizer)
    if difference is not None:
        raise _other_tokenizer(difference, source)
    spec = (model or ModelSpec()).model_copy(update={"source": source, "lora": None})
    return LocalTeacher(TorchPolicy(loaded, spec), learner or LearnerSpec())


def first_difference(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase
) -> str | None:
    """Where two tokenizers first disagree about what an id means; None if nowhere."""
    own = {id: token for token, id in student.get_vocab().items()}
    other = {id: token for token, id in teacher.get_vocab().items()}
    for id in sorted(own.keys() | other.keys()):
        if own.get(id) != other.get(id):
            return f"token {id} is {_named(own.get(id))} here and {_named(other.get(id))} there"
    return None


def _named(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def _other_tokenizer(difference: str, where: str) -> ModelError:
    return ModelError(
        f"the teacher has another tokenizer than the student: {difference}",
        where=where,
        hint="distil from a model of the same family, or from its texts (method = 'sft')",
    )


class LocalTeacher:
    """A model in this process, which is never trained."""

    def __init__(self, policy: TorchPolicy, spec: LearnerSpec) -> None:
        for parameter in policy.model.parameters():
            parameter.requires_grad_(False)
        self._policy = policy
        self._spec = spec

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """See `Teacher`; UsageError for a sample that the model cannot compute whole."""
        plain = [replace(sample, temperature=1.0, support=None) for sample in samples]
        return token_logprobs(self._policy, plain, self._spec)


# --- a server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How patiently a server is asked: `deadline_s` bounds one sequence with its `retries`, the
    first of them after `pause_s` (doubling); `parallel` sequences are asked about at once."""

    deadline_s: float = 120.0
    retries: int = 4
    pause_s: float = 0.5
    parallel: int = 8


class EndpointTeacher:
    """A model behind `POST {address}/completions` with `echo`, as vLLM serves it.

    Tokens travel as ids. The texts that come back for them are compared with the student's,
    which is how another tokenizer is found out. Its key is read from `HEADRACE_TEACHER_KEY`.
    """

    def __init__(
        self, address: str, student: PreTrainedTokenizerBase, patience: Patience | None = None
    ) -> None:
        self._place = _place(address)
        self._student = student
        self._patience = patience or Patience()
        self._tls = ssl.create_default_context() if self._place.scheme == "https" else None

    @property
    def address(self) -> str:
        return self._place._replace(fragment="").geturl()

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """See `Teacher`.

        Raises InfrastructureError where the server gives no answer within its deadline,
        ModelError where it refuses, answers in another form or has another tokenizer.
        """
        with ThreadPoolExecutor(max_workers=self._patience.parallel) as pool:
            return list(pool.map(self._one, samples))

    def _one(self, sample: Sample) -> Floats:
        if not bool(sample.trainable.any()):
            return np.zeros(len(sample.ids), dtype=np.float32)
        body: dict[str, Json] = {
            "prompt": sample.ids.tolist(),
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
            "temperature": 1.0,
        }
        if self._place.fragment:
            body["model"] = self._place.fragment
        reply = self._post(body)
        values, tokens = self._read(reply, len(sample.ids))
        self._refuse_other_tokenizer(sample.ids, tokens)
        found = np.array([0.0 if v is None else v for v in values], dtype=np.float32)
        if not bool(np.isfinite(found[sample.trainable]).all()):
            raise self._strange(reply)
        return np.where(sample.trainable, found, np.float32(0))

    def _read(self, reply: Json, length: int) -> tuple[list[float | None], list[str]]:
        try:
            told = reply["choices"][0]["logprobs"]
            values, tokens = told["token_logprobs"], told["tokens"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._strange(reply) from error
        if not isinstance(values, list) or not isinstance(tokens, list):
            raise self._strange(reply)
        if len(values) != length or len(tokens) != length:
            raise self._strange(reply)
        if values[0] is not None and not _is_number(values[0]):
            raise self._strange(reply)
        if not all(map(_is_number, values[1:])) or not all(isinstance(t, str) for t in tokens):
            raise self._strange(reply)
        return values, tokens

    def _refuse_other_tokenizer(self, ids: Ids, tokens: Sequence[str]) -> None:
        """Compare texts where they are plain words on both sides: others are spelled freely."""
        for id, theirs in zip(ids.tolist(), tokens, strict=True):
            own = str(self._student.decode([id]))
            if _is_word(own) and _is_word(theirs) and own.strip() != theirs.strip():
                difference = f"token {id} is {own!r} here and {theirs!r} there"
                raise _other_tokenizer(difference, self.address)

    def _strange(self, reply: Json) -> ModelError:
        return ModelError(
            f"the teacher's server does not score token ids as expected: {str(reply)[:300]}",
            where=self.address,
            hint="it has to echo a prompt of token ids with its logprobs, as vLLM does",
        )

    # --- the wire ------------------------------------------------------------------------

    def _post(self, body: Json) -> Json:
        until = time.monotonic() + self._patience.deadline_s
        pause = self._patience.pause_s
        for tries_left in range(self._patience.retries, -1, -1):
            try:
                return self._try(json.dumps(body).encode(), until)
            except _Transient as error:
                if not tries_left or time.monotonic() + pause >= until:
                    raise InfrastructureError(
                        f"the teacher's server gives no answer: {error}",
                        where=self.address,
                        hint="see that it runs, then resume",
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable: the last try returns or raises")

    def _try(self, body: bytes, until: float) -> Json:
        headers = {"Content-Type": "application/json", "Connection": "close", **_key(self.address)}
        connection = self._connection(max(until - time.monotonic(), 0.001))
        try:
            path = self._place.path.rstrip("/") + "/completions"
            connection.request("POST", path, body, headers)
            with connection.getresponse() as response:
                raw = _read_until(response, until)
        except (OSError, http.client.HTTPException) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            said = f"{response.status} {response.reason}: {raw[:300].decode('utf-8', 'replace')}"
            if response.status in _TRANSIENT:
                raise _Transient(said)
            raise ModelError(
                f"the teacher's server refuses: {said.strip()}",
                where=self.address,
                hint=f"ADDRESS#MODEL names the model, {KEY_VARIABLE} holds the key",
            )
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Transient(f"an answer that is no JSON: {raw[:80]!r}") from error

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._place.hostname or "", self._place.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)


class _Transient(Exception):
    """A try that failed and may do better."""


def _place(address: str) -> SplitResult:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{address!r} is no address of a teacher",
            where="distill.teacher",
            hint="for example http://localhost:8000/v1",
        )
    if parts.username or parts.password or parts.query:
        raise UsageError(
            "the address of a teacher holds more than a place",
            where="distill.teacher",
            hint=f"put the key into the environment variable {KEY_VARIABLE}",
        )
    return parts


def _key(address: str) -> dict[str, str]:
    value = os.environ.get(KEY_VARIABLE, "").strip()
    if not value:
        return {}
    if not value.isascii() or not value.isprintable():
        raise UsageError(f"{KEY_VARIABLE} holds no key", where=address)
    return {"Authorization": f"Bearer {value}"}


def _read_until(response: http.client.HTTPResponse, until: float) -> bytes:
    """The body; TimeoutError where it comes in drops, HTTPException where it has no end."""
    found = bytearray()
    while chunk := response.read1(_CHUNK):
        found += chunk
        if time.monotonic() > until:
            raise TimeoutError("no whole answer within the deadline")
        if len(found) > _MOST_BYTES:
            raise http.client.HTTPException(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_word(text: str) -> bool:
    return text.strip().isascii() and text.strip().isalnum()

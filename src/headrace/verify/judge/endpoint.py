"""Any OpenAI-compatible server as a judge or a reward model, with the standard library's HTTP.

What the world does (no connection, overload, an answer too late) is tried again within one
deadline; what the server will not do is said once. The key is read from the environment and
appears in no error and no verdict. Knows no prompt.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from headrace.errors import UsageError
from headrace.types import Json
from headrace.verify.judge.scribes import Declined, Refused, Unreachable

__all__ = ["Endpoint", "EndpointScorer", "EndpointSpec"]

_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_ABOUT_THE_TEXT = frozenset({400, 413, 422})
_MOST_BYTES = 8 * 2**20
_CHUNK = 65536
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """Which model, where, and how patiently it is asked.

    `base_url` is what request paths are appended to: `http://host:8000/v1` for chat. `key_variable`
    names the environment variable that holds the key, None where none is needed. `deadline_s`
    (seconds) bounds one question with its `retries`, from when one of `parallel` places is free
    for it. `revision` stands for whatever else its replies depend on (quantisation, template).
    """

    base_url: str
    model: str
    key_variable: str | None = None
    revision: str = ""
    deadline_s: float = 120.0
    retries: int = 3
    parallel: int = 8

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{self.base_url!r} is no address of a model server",
                where="base_url",
                hint="for example http://localhost:8000/v1",
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UsageError(
                "the address of a model server holds more than a place",
                where="base_url",
                hint="put the key into an environment variable and name it in key_variable",
            )
        if self.deadline_s <= 0 or self.retries < 0 or self.parallel < 1:
            raise UsageError("deadline_s, retries and parallel of a model server must be positive")

    @property
    def identity(self) -> str:
        """All of it that replies depend on."""
        return f"{self.model}@{self.base_url.rstrip('/')}#{self.revision}"


class _Server:
    """Posts JSON and reads JSON, in at most `spec.parallel` connections at once."""

    def __init__(self, spec: EndpointSpec) -> None:
        self._spec = spec
        self._place: SplitResult = urlsplit(spec.base_url)
        self._key = _key(spec)
        self._free = threading.BoundedSemaphore(spec.parallel)
        self._tls = ssl.create_default_context() if self._place.scheme == "https" else None

    def post(self, path: str, body: Json) -> Json:
        """The reply to `body`; Unreachable, Declined or Refused."""
        with self._free:
            until = time.monotonic() + self._spec.deadline_s
            pause = _FIRST_PAUSE_S
            for tries_left in range(self._spec.retries, -1, -1):
                try:
                    return self._once(path, body, until)
                except _Transient as error:
                    wait = pause if error.pause is None else error.pause
                    if not tries_left or time.monotonic() + wait >= until:
                        raise Unreachable(
                            f"the model server gives no reply: {error}", where=self._spec.base_url
                        ) from error
                    time.sleep(wait)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable: the last try returns or raises")

    def _once(self, path: str, body: Json, until: float) -> Json:
        connection = self._connection(until)
        try:
            connection.request(
                "POST",
                self._place.path.rstrip("/") + path,
                json.dumps(body).encode(),
                {"Content-Type": "application/json", "Connection": "close", **self._key},
            )
            with connection.getresponse() as response:
                raw = _read(response)
        except (OSError, http.client.HTTPException, _Endless) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._problem(response, raw)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Transient(f"a reply that is no JSON: {raw[:80]!r}") from error

    def _connection(self, until: float) -> http.client.HTTPConnection:
        host, port = self._place.hostname or "", self._place.port
        left = max(until - time.monotonic(), 0.001)
        connection = (
            http.client.HTTPConnection(host, port, timeout=left)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=left, context=self._tls)
        )
        connection.response_class = _paced_response(until)
        return connection

    def _problem(self, response: http.client.HTTPResponse, raw: bytes) -> Exception:
        said = raw[:300].decode("utf-8", "replace").strip()
        what = f"the model server said {response.status} {response.reason}: {said}"
        if response.status in _TRANSIENT:
            return _Transient(what, pause=_retry_after(response.headers.get("Retry-After")))
        if response.status in _ABOUT_THE_TEXT:
            return Declined(what, where=self._spec.base_url)
        return Refused(
            what,
            where=self._spec.base_url,
            hint=f"check base_url, the model's name ({self._spec.model}) and the key in "
            f"{self._spec.key_variable or 'key_variable (none is named)'}",
        )


class Endpoint:
    """A chat model behind `POST {base_url}/chat/completions`, at temperature 0: a `Scribe`."""

    def __init__(self, spec: EndpointSpec) -> None:
        self._spec = spec
        self._server = _Server(spec)

    @property
    def identity(self) -> str:
        return self._spec.identity

    def complete(self, prompt: str, *, max_tokens: int) -> str:
        """The text of the first choice; "" where the model wrote none."""
        body = {
            "model": self._spec.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        reply = self._server.post("/chat/completions", body)
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise _strange(self._spec, reply) from error
        if not isinstance(text, str | None):
            raise _strange(self._spec, reply)
        return text or ""


class EndpointScorer:
    """A reward model behind `POST {base_url}/pooling`, as vLLM serves them: a `Scorer`.

    Its reply holds {"data": [{"data": numbers}]}; of several numbers (one a token) the last is
    the reward. The base of vLLM's pooling address has no `/v1`.
    """

    def __init__(self, spec: EndpointSpec) -> None:
        self._spec = spec
        self._server = _Server(spec)

    @property
    def identity(self) -> str:
        return self._spec.identity

    def score(self, prompt: str, answer: str) -> float:
        messages = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": answer},
        ]
        reply = self._server.post("/pooling", {"model": self._spec.model, "messages": messages})
        try:
            value = reply["data"][0]["data"]
            while isinstance(value, list):
                value = value[-1]
        except (KeyError, IndexError, TypeError) as error:
            raise _strange(self._spec, reply) from error
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _strange(self._spec, reply)
        return float(value)


class _Transient(Exception):
    """A try that failed and may do better; `pause` (seconds) where the server asked for one."""

    def __init__(self, what: str, *, pause: float | None = None) -> None:
        super().__init__(what)
        self.pause = pause


class _Endless(Exception):
    """A reply without end."""


class _Paced(io.RawIOBase):
    """Reads a socket until a moment, however small the drops are in which its bytes come."""

    def __init__(self, raw: io.RawIOBase, wire: socket.socket, until: float) -> None:
        self._raw, self._wire, self._until = raw, wire, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int | None:  # type: ignore[override]
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole reply within the deadline")
        self._wire.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _paced_response(until: float) -> type[http.client.HTTPResponse]:
    class Paced(http.client.HTTPResponse):
        def __init__(
            self,
            sock: socket.socket,
            debuglevel: int = 0,
            method: str | None = None,
            url: str | None = None,
        ) -> None:
            super().__init__(sock, debuglevel, method, url)
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_Paced(raw, sock, until))

    return Paced


def _read(response: http.client.HTTPResponse) -> bytes:
    found = bytearray()
    while chunk := response.read1(_CHUNK):
        found += chunk
        if len(found) > _MOST_BYTES:
            raise _Endless(f"a reply of more than {_MOST_BYTES} bytes")
    return bytes(found)


def _key(spec: EndpointSpec) -> Mapping[str, str]:
    if spec.key_variable is None:
        return {}
    value = os.environ.get(spec.key_variable, "").strip()
    if not value or not value.isascii() or not value.isprintable():
        raise UsageError(
            f"the environment variable {spec.key_variable} holds no key",
            where=spec.base_url,
            hint=f"export {spec.key_variable}=... before you start",
        )
    return {"Authorization": f"Bearer {value}"}


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, where the server names them as a number."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _strange(spec: EndpointSpec, reply: Json) -> Declined:
    return Declined(
        f"the model server's reply has another form: {json.dumps(reply)[:300]}",
        where=spec.base_url,
    )

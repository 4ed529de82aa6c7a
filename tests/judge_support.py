"""What the judge tests share: scripted models, a model server in this process, and tasks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.types import Json, Message, Task, VerifierRef, split_of

__all__ = ["ModelServer", "Reply", "ScriptedScribe", "judged_task", "nonce_in", "serving"]


def judged_task(answer: Json, prompt: str = "Which city is it?") -> Task:
    return Task(
        domain="judged",
        problem=prompt,
        tier=0,
        split=split_of("judged", prompt),
        messages=(Message.of("user", prompt),),
        verifier=VerifierRef("judged", "1"),
        answer=answer,
    )


def nonce_in(prompt: str) -> str:
    """The mark that a judge is asked to repeat."""
    return prompt.rpartition('{"nonce": "')[2][:32]


class ScriptedScribe:
    """Replies with what `write` makes of the prompt; keeps the prompts."""

    identity = "scripted"

    def __init__(self, write: Callable[[str], str]) -> None:
        self._write = write
        self.prompts: list[str] = []

    def complete(self, prompt: str, *, max_tokens: int) -> str:
        del max_tokens
        self.prompts.append(prompt)
        return self._write(prompt)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server answers: a status, a body, after a delay, its bytes `drip` seconds apart."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0
    drip: float = 0.0

    @classmethod
    def chat(cls, text: str, delay: float = 0.0) -> Reply:
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})
        return cls(body=body, delay=delay)


class ModelServer:
    """Answers requests with `script`, a function of the number of the request and its body."""

    def __init__(self) -> None:
        self.script: Callable[[int, Json], Reply] = lambda number, body: Reply.chat("hello")
        self.requests: list[Json] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.busiest = 0
        self._busy = 0
        self._lock = threading.Lock()
        self.address = ""

    def play(self, script: Callable[[int, Json], Reply]) -> None:
        """A new script, with nothing asked yet."""
        self.script = script
        self.requests, self.paths, self.keys, self.busiest = [], [], [], 0

    def answer(self, path: str, key: str | None, body: Json) -> Reply:
        with self._lock:
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            number = len(self.requests)
            self.requests.append(body)
            self.paths.append(path)
            self.keys.append(key)
        try:
            reply = self.script(number, body)
            time.sleep(reply.delay)
            return reply
        finally:
            with self._lock:
                self._busy -= 1


@contextmanager
def serving() -> Generator[ModelServer]:
    model = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = model.answer(self.path, self.headers.get("Authorization"), body)
            raw = reply.body.encode()
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                if not reply.drip:
                    self.wfile.write(raw)
                for byte in raw if reply.drip else b"":
                    self.wfile.write(bytes([byte]))
                    time.sleep(reply.drip)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    model.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Streams are kept within bounds: the head and the tail, and an exact count of all of it."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sandbox.capture import Collector, stdin_file
from headrace.sandbox.spec import Capture


def collected(pieces: list[bytes], keep: int) -> tuple[Capture, int]:
    """What a collector kept of pieces that were written one at a time, and what it counted."""

    async def run() -> tuple[Capture, int]:
        reader, writer = os.pipe()
        counted: list[int] = []
        collector = Collector(reader, keep=keep, on_bytes=counted.append)
        for piece in pieces:
            os.write(writer, piece)
            collector.drain()
        os.close(writer)
        await asyncio.wait_for(collector.ended.wait(), 10)
        collector.close()
        return collector.capture(), sum(counted)

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=60), max_size=12),
    keep=st.integers(min_value=2, max_value=200),
)
def test_head_and_tail_are_kept_and_the_rest_is_counted(pieces: list[bytes], keep: int) -> None:
    whole = b"".join(pieces)
    capture, counted = collected(pieces, keep)
    half = keep // 2
    assert capture.total == counted == len(whole)
    if len(whole) <= 2 * half:
        assert (capture.data, capture.truncated) == (whole, False)
    else:
        left_out = len(whole) - 2 * half
        mark = f"\n[{left_out} bytes left out]\n".encode()
        assert capture.data == whole[:half] + mark + whole[-half:]
        assert capture.omitted == left_out
        assert capture.truncated


def test_the_tail_stays_exact_over_many_small_pieces() -> None:
    pieces = [b"%07d" % number for number in range(30_000)]
    whole = b"".join(pieces)
    capture, counted = collected(pieces, 200)
    assert counted == len(whole)
    assert capture.data == whole[:100] + b"\n[209800 bytes left out]\n" + whole[-100:]


def test_nothing_is_kept_of_an_empty_stream() -> None:
    assert collected([], 10)[0] == Capture(b"", 0)


def test_text_that_is_not_utf8_is_replaced() -> None:
    assert collected([b"a\xff"], 10)[0].text == "a\ufffd"


def test_a_command_that_writes_for_ever_costs_a_bounded_amount_of_memory() -> None:
    async def run() -> tuple[Capture, int]:
        reader, writer = os.pipe()
        total = 0
        enough = asyncio.Event()

        def count(size: int) -> None:
            nonlocal total
            total += size
            if total > 300 * 2**20:
                enough.set()

        collector = Collector(reader, keep=2**20, on_bytes=count)
        with subprocess.Popen(["yes"], stdout=writer) as child:
            os.close(writer)
            await asyncio.wait_for(enough.wait(), 60)
            child.kill()
        collector.close()
        return collector.capture(), total

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    capture, total = asyncio.run(run())
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 16 * 1024
    assert capture.total == total
    assert len(capture.data) < 2**20 + 64
    assert re.search(rb"\n\[\d+ bytes left out\]\n", capture.data)


def test_drain_takes_what_lies_there_while_a_writer_holds_the_pipe_open() -> None:
    async def run() -> None:
        reader, writer = os.pipe()
        collector = Collector(reader, keep=100, on_bytes=lambda _: None)
        os.write(writer, b"late")
        collector.drain()
        assert not collector.ended.is_set()
        collector.close()
        collector.close()
        collector.drain()
        assert collector.ended.is_set()
        assert collector.capture().data == b"late"
        os.close(writer)

    asyncio.run(run())


def test_stdin_yields_its_data_once_and_ends() -> None:
    for size in (0, 1, 2**16, 2**16 + 1, 3 * 2**20):
        data = os.urandom(size)
        fd = stdin_file(data)
        with os.fdopen(fd, "rb") as file:
            assert file.read() == data
            assert file.read() == b""


def test_stdin_is_not_inherited_by_other_programs() -> None:
    for size in (0, 1, 2**17):
        fd = stdin_file(b"x" * size)
        assert not os.get_inheritable(fd)
        os.close(fd)

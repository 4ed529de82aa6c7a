from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sandbox.egress.allowlist import AllowList, is_public, parse_endpoint
from headrace.sandbox.egress.proxy import EgressProxy, ProxyLimits
from proxy_support import Reply, echo, origin, proxy, recorder, send

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


# --- rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "asked", "allowed"),
    [
        ("example.org", "example.org:443", True),
        ("example.org", "EXAMPLE.org.:80", True),
        ("example.org", "example.org:8080", False),
        ("example.org", "a.example.org:443", False),
        ("example.org", "example.org.evil.net:443", False),
        ("example.org:8080", "example.org:8080", True),
        ("example.org:8080", "example.org:443", False),
        ("*.example.org", "a.example.org:443", True),
        ("*.example.org", "b.a.example.org:443", True),
        ("*.example.org", "example.org:443", False),
        ("*.example.org", "badexample.org:443", False),
        ("*.example.org:22", "a.example.org:22", True),
        ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", True),
        ("[::1]:9000", "[0:0:0:0:0:0:0:1]:9000", True),
        ("::1", "[::1]:443", True),
    ],
)
def test_an_entry_allows_its_host_and_ports_and_nothing_else(
    entry: str, asked: str, allowed: bool
) -> None:
    assert AllowList([entry]).names(parse_endpoint(asked)) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        *("*", "*.", "", "https://a.org", "a.org/x", "a.org:0", "a.org:65536", "a.org:x", "a b"),
        *(
            "*.1.2",
            "127.1",
            "0x7f000001",
            "2130706433",
            "[::1",
            "fe80::1%eth0",
            "a..org",
            "u@a.org",
        ),
    ],
)
def test_a_malformed_entry_is_a_usage_error(entry: str) -> None:
    with pytest.raises(UsageError):
        AllowList([entry])


# From the special-purpose registries of RFC 6890 and its successors, and what clouds use.
FORBIDDEN = (
    *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9"),
    *("169.254.169.254", "172.16.0.1", "192.0.0.8", "192.0.2.1", "192.168.1.1"),
    *("198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1"),
    *(
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
    ),
    *("100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "fc00::1"),
    *("fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "168.63.129.16"),
    *("192.88.99.1",),
)


@pytest.mark.parametrize("text", FORBIDDEN)
def test_an_address_that_is_not_public_is_not_reached_by_name(text: str) -> None:
    rules = AllowList(["evil.example", "*.evil.example", "evil.example:8080"])
    for end in ("evil.example:443", "a.evil.example:80", "evil.example:8080"):
        assert not rules.reaches(parse_endpoint(end), ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_a_public_address_is_reached(text: str) -> None:
    rules = AllowList(["a.example"])
    assert rules.reaches(parse_endpoint("a.example:443"), ipaddress.ip_address(text))


def test_only_a_listed_address_or_a_local_port_opens_what_is_not_public() -> None:
    rules = AllowList(["10.0.0.5:5000", "registry.corp:5000", "localhost:8080"])
    inner, loop = ipaddress.ip_address("10.0.0.5"), ipaddress.ip_address("127.0.0.1")
    assert rules.reaches(parse_endpoint("registry.corp:5000"), inner)
    assert not rules.reaches(parse_endpoint("registry.corp:5001"), inner)
    assert rules.reaches(parse_endpoint("localhost:8080"), loop)
    assert not rules.reaches(parse_endpoint("registry.corp:5000"), loop)
    assert not AllowList(["localhost"]).reaches(parse_endpoint("localhost:80"), loop)


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_as_the_one_it_carries(
    address: ipaddress.IPv4Address,
) -> None:
    rules = AllowList(["a.example"])
    end = parse_endpoint("a.example:443")
    mapped = ipaddress.ip_address(f"::ffff:{address}")
    assert rules.reaches(end, mapped) == rules.reaches(end, address) == is_public(address)


# --- tunnels -------------------------------------------------------------------------------


async def connect(
    port: int, target: str
) -> tuple[Reply, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    return Reply(int(head[9:12]), head, b""), reader, writer


def test_a_tunnel_carries_bytes_both_ways_and_counts_them() -> None:
    async def run() -> None:
        async with (
            origin(echo) as there,
            proxy([f"127.0.0.1:{there}"]) as (made, port),
        ):
            reply, reader, writer = await connect(port, f"127.0.0.1:{there}")
            assert reply.status == 200
            data = bytes(range(256)) * 4096
            writer.write(data)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(-1), 10) == data
            writer.close()
            stats = made.stats()
            assert (stats.sent, stats.received) == (len(data), len(data))
            assert (stats.connections, dict(stats.refused)) == (1, {})

    asyncio.run(run())


def test_what_is_not_listed_is_refused_with_a_reason_and_counted() -> None:
    async def run() -> None:
        async with origin(echo) as there, proxy(["example.org"]) as (made, port):
            target = f"127.0.0.1:{there}"
            for _ in range(2):
                raw = f"CONNECT {target} HTTP/1.1\r\n\r\n".encode()
                reply = await send(port, raw)
                assert reply.status == 403
                assert (
                    reply.body
                    == f"headrace: {target} is not in this sandbox's allow-list\n".encode()
                )
            assert dict(made.stats().refused) == {target: 2}

    asyncio.run(run())


def test_a_name_that_turns_into_a_local_address_reaches_nothing() -> None:
    async def run() -> None:
        touched: list[bytes] = []
        async with origin(recorder(touched, OK)) as there:
            names = {"evil.example": ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"]}
            allow = [f"evil.example:{there}"]
            async with proxy(allow, names=names) as (_, port):
                raw = f"CONNECT evil.example:{there} HTTP/1.1\r\n\r\n".encode()
                reply = await send(port, raw)
                assert (reply.status, touched) == (403, [])

    asyncio.run(run())


def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to() -> None:
    async def run() -> None:
        asked: list[str] = []

        async def rebinding(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

        async with origin(echo) as there:
            made = EgressProxy([f"localhost:{there}"], resolve=rebinding)
            sock = socket.create_server(("127.0.0.1", 0))
            await made.serve(sock)
            reply, _, writer = await connect(sock.getsockname()[1], f"localhost:{there}")
            writer.close()
            await made.aclose()
            assert (reply.status, asked) == (200, ["localhost"])

    asyncio.run(run())


@pytest.mark.parametrize("text", ["127.1", "0x7f.1", "2130706433", "017700000001", "[::1%lo]"])
def test_other_spellings_of_the_loopback_are_no_hosts(text: str) -> None:
    async def run() -> None:
        async with proxy(["127.0.0.1:80", "[::1]:80"]) as (_, port):
            reply = await send(port, f"CONNECT {text}:80 HTTP/1.1\r\n\r\n".encode())
            assert reply.status in (400, 403)

    asyncio.run(run())


# --- plain requests ------------------------------------------------------------------------


def test_a_request_reaches_the_host_without_what_is_meant_for_the_proxy() -> None:
    async def run() -> None:
        seen: list[bytes] = []
        answer = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=5\r\nX-Mine: 1\r\n"
            b"Connection: keep-alive, x-mine\r\nX-Kept: 1\r\n\r\nhi"
        )
        async with (
            origin(recorder(seen, answer)) as there,
            proxy([f"127.0.0.1:{there}"]) as (_, port),
        ):
            reply = await send(
                port,
                f"GET http://127.0.0.1:{there}/a?b=1 HTTP/1.1\r\nHost: evil\r\nX-Kept: 1\r\n"
                "Proxy-Authorization: Basic x\r\nConnection: x-secret, keep-alive\r\n"
                "X-Secret: 1\r\nUpgrade: h2c\r\nTE: trailers\r\n\r\n".encode(),
            )
        assert (reply.status, reply.body) == (200, b"hi")
        assert seen == [
            f"GET /a?b=1 HTTP/1.1\r\nHost: 127.0.0.1:{there}\r\nX-Kept: 1\r\n"
            "Connection: close\r\n\r\n".encode()
        ]
        assert reply.head == (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kept: 1\r\nConnection: close"
        )

    asyncio.run(run())


@pytest.mark.parametrize(
    ("framing", "sent", "passed"),
    [
        (b"Content-Length: 5", b"hello", b"hello"),
        (b"Content-Length: 5", b"helloGET http://x/ HTTP/1.1\r\n\r\n", b"hello"),
        (
            b"Transfer-Encoding: chunked",
            b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ),
    ],
)
def test_a_body_is_passed_on_to_its_end_and_not_a_byte_further(
    framing: bytes, sent: bytes, passed: bytes
) -> None:
    async def run() -> None:
        seen: list[bytes] = []
        async with (
            origin(recorder(seen, OK)) as there,
            proxy([f"127.0.0.1:{there}"]) as (_, port),
        ):
            head = f"POST http://127.0.0.1:{there}/ HTTP/1.1\r\n".encode() + framing + b"\r\n\r\n"
            reply = await send(port, head + sent)
        assert (reply.status, reply.body) == (200, b"hi")
        assert seen[0].partition(b"\r\n\r\n")[2] == passed

    asyncio.run(run())


SMUGGLED = {
    "two framings": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "two framings in another case": b"transfer-ENCODING: chunked\r\ncontent-length: 5\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "a signed length": b"Content-Length: +5\r\n",
    "a hexadecimal length": b"Content-Length: 0x5\r\n",
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n",
    "a coding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "a folded line": b"X: 1\r\n Transfer-Encoding: chunked\r\n",
    "a bare line feed": b"X: 1\nTransfer-Encoding: chunked\r\n",
    "a bare carriage return": b"X: 1\rTransfer-Encoding: chunked\r\n",
    "a zero byte": b"X: \x00\r\n",
    "no name": b": 1\r\n",
}


@pytest.mark.parametrize("header", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_what_two_readers_could_read_differently_is_refused(header: bytes) -> None:
    async def run() -> None:
        seen: list[bytes] = []
        async with (
            origin(recorder(seen, OK)) as there,
            proxy([f"127.0.0.1:{there}"]) as (_, port),
        ):
            line = f"POST http://127.0.0.1:{there}/ HTTP/1.1\r\n".encode()
            reply = await send(port, line + header + b"\r\n0\r\n\r\n")
            assert (reply.status, seen) == (400, [])

    asyncio.run(run())


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET https://127.0.0.1:{port}/ HTTP/1.1",
        "GET ftp://127.0.0.1:{port}/ HTTP/1.1",
        "GET http://user@127.0.0.1:{port}/ HTTP/1.1",
        "GET http://127.0.0.1:{port}\\@evil/ HTTP/1.1",
        "GET http://127.0.0.1:{port}/#x HTTP/1.1",
        "GET  http://127.0.0.1:{port}/ HTTP/1.1",
        "GET\thttp://127.0.0.1:{port}/ HTTP/1.1",
        "CONNECT 127.0.0.1 HTTP/1.1",
        "CONNECT 127.0.0.1:{port}/ HTTP/1.1",
        "CONNECT :{port} HTTP/1.1",
        "GET http://127.0.0.1:{port}/",
        "\x16\x03\x01\x02",
    ],
)
def test_a_request_line_that_is_not_for_a_proxy_is_refused(line: str) -> None:
    async def run() -> None:
        async with origin(echo) as there, proxy([f"127.0.0.1:{there}"]) as (_, port):
            reply = await send(port, line.format(port=there).encode() + b"\r\n\r\n")
            assert reply.status == 400

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", 502),
        (b"SSH-2.0-x\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 502),
        (b"HTTP/1.1 101 Switching\r\n\r\n", 502),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200),
    ],
)
def test_a_broken_answer_is_a_bad_gateway(answer: bytes, status: int) -> None:
    async def run() -> None:
        async with (
            origin(recorder([], answer)) as there,
            proxy([f"127.0.0.1:{there}"]) as (_, port),
        ):
            raw = f"GET http://127.0.0.1:{there}/ HTTP/1.1\r\n\r\n".encode()
            assert (await send(port, raw)).status == status

    asyncio.run(run())


def test_a_host_that_answers_before_it_has_read_the_body_is_heard() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.write_eof()
        await asyncio.sleep(0.2)

    async def run() -> None:
        async with origin(hasty) as there, proxy([f"127.0.0.1:{there}"]) as (_, port):
            head = f"POST http://127.0.0.1:{there}/ HTTP/1.1\r\nContent-Length: 99\r\n\r\n"
            assert (await send(port, head.encode() + b"x")).status == 413

    asyncio.run(run())


# --- bounds --------------------------------------------------------------------------------

SHORT = ProxyLimits(connections=2, head_s=0.2, connect_s=0.3, idle_s=0.3, linger_s=0.2)


def test_a_head_is_bounded_in_bytes_and_time() -> None:
    async def run() -> None:
        async with proxy(["a.example"], limits=SHORT) as (_, port):
            large = b"GET http://a.example/ HTTP/1.1\r\nX: " + b"x" * 20_000
            assert (await send(port, large)).status == 431
            assert (await send(port, b"GET http://a.exa")).status == 408

    asyncio.run(run())


def test_a_silent_peer_gives_its_slot_back() -> None:
    async def run() -> None:
        async with (
            origin(echo) as there,
            proxy([f"127.0.0.1:{there}"], limits=SHORT) as (made, port),
        ):
            held = [await connect(port, f"127.0.0.1:{there}") for _ in range(2)]
            raw = f"CONNECT 127.0.0.1:{there} HTTP/1.1\r\n\r\n".encode()
            assert (await send(port, raw)).status == 503
            assert made.stats().active == 2
            for _, reader, writer in held:
                assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
            await asyncio.sleep(0.05)
            assert made.stats().active == 0
            reply, _, writer = await connect(port, f"127.0.0.1:{there}")
            writer.close()
            assert reply.status == 200

    asyncio.run(run())


def test_a_half_closed_tunnel_lingers_for_a_moment_only() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await asyncio.sleep(1.0)

    async def run() -> float:
        limits = ProxyLimits(idle_s=30.0, linger_s=0.1)
        async with origin(mute) as there, proxy([f"127.0.0.1:{there}"], limits=limits) as (_, port):
            _, reader, writer = await connect(port, f"127.0.0.1:{there}")
            began = asyncio.get_running_loop().time()
            writer.write_eof()
            await reader.read()
            writer.close()
            return asyncio.get_running_loop().time() - began

    assert asyncio.run(run()) < 0.8


def test_a_tunnel_with_traffic_one_way_is_not_idle() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(8):
            writer.write(b"x")
            await asyncio.sleep(0.1)

    async def run() -> None:
        async with origin(drip) as there, proxy([f"127.0.0.1:{there}"], limits=SHORT) as (_, port):
            _, reader, writer = await connect(port, f"127.0.0.1:{there}")
            assert await reader.read() == b"x" * 8
            writer.close()

    asyncio.run(run())


def test_a_name_that_resolves_for_ever_is_a_gateway_timeout() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    async def run() -> None:
        made = EgressProxy(["a.example"], limits=SHORT, resolve=never)
        sock = socket.create_server(("127.0.0.1", 0))
        await made.serve(sock)
        raw = b"GET http://a.example/ HTTP/1.1\r\n\r\n"
        assert (await send(sock.getsockname()[1], raw)).status == 504
        await made.aclose()

    asyncio.run(run())


def test_a_host_that_never_answers_is_a_gateway_timeout() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with origin(mute) as there, proxy([f"127.0.0.1:{there}"], limits=SHORT) as (_, port):
            raw = f"GET http://127.0.0.1:{there}/ HTTP/1.1\r\n\r\n".encode()
            assert (await send(port, raw)).status == 504

    asyncio.run(run())


def test_the_list_of_refused_hosts_is_bounded() -> None:
    async def run() -> None:
        async with proxy(["a.example"]) as (made, port):
            for number in range(140):
                await send(port, f"CONNECT h{number}.example:443 HTTP/1.1\r\n\r\n".encode())
            assert len(made.stats().refused) == 128

    asyncio.run(run())


def test_closing_leaves_no_task_and_no_socket() -> None:
    async def run() -> None:
        async with origin(echo) as there:
            before = asyncio.all_tasks()
            made = EgressProxy([f"127.0.0.1:{there}"])
            sock = socket.create_server(("127.0.0.1", 0))
            await made.serve(sock)
            port = sock.getsockname()[1]
            _, reader, writer = await connect(port, f"127.0.0.1:{there}")
            idle = socket.create_connection(("127.0.0.1", port))
            await made.aclose()
            await made.aclose()
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            idle.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=1)
            assert {
                task for task in asyncio.all_tasks() - before if "one" not in repr(task)
            } == set()

    asyncio.run(run())

"""The D-Bus client against peers that answer well, badly, late, hugely, or not at all."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim_hooks.dbus import LIMIT, Connection, DBusError, _message, _Reader, _types, _Writer

Peer = Callable[[socket.socket], None]


@contextmanager
def listening(directory: Path, peer: Peer) -> Iterator[str]:
    """The path of a socket behind which *peer* answers one connection."""
    path = str(directory / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            try:
                peer(connection)
            except OSError:
                pass  # it was closed on us

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        thread.join(5)
        server.close()


def greeted(answer: Callable[[socket.socket, bytes], None]) -> Peer:
    """A peer that accepts the user, reads one call and answers it by *answer*."""

    def peer(connection: socket.socket) -> None:
        said = b""
        while not said.endswith(b"BEGIN\r\n"):
            said += connection.recv(4096)
        user = str(os.geteuid()).encode().hex().encode()
        assert said == b"\0AUTH EXTERNAL " + user + b"\r\nBEGIN\r\n"
        connection.sendall(b"OK 0123\r\n")
        answer(connection, connection.recv(65536))

    return peer


def reply(
    signature: str, body: list[Any], *, kind: int = 2, serial: int = 1, fields: "dict[int, Any] | None" = None
) -> bytes:
    """A message as a peer sends it."""
    content, head = _Writer(), _Writer()
    for one, value in zip(_types(signature), body, strict=True):
        content.value(one, value)
    head.data += bytes((ord("l"), kind, 0, 1))
    head.value("u", len(content.data))
    head.value("u", 99)
    known: dict[int, Any] = {5: ("u", serial), 8: ("g", signature), **(fields or {})}
    head.value("a(yv)", list(known.items()))
    head.align(8)
    return bytes(head.data + content.data)


def call(path: str, deadline: float = 2.0) -> list[Any]:
    connection = Connection(path, deadline)
    try:
        return connection.call("/o", "i.f", "M", "s", ["x"])
    finally:
        connection.close()


def test_an_answer_is_read(tmp_path: Path) -> None:
    values = ["text", [("a", "b"), ("c", "d")], 7, ("v", 1)]

    def answer(connection: socket.socket, asked: bytes) -> None:
        connection.sendall(reply("", [], kind=4, serial=0))  # a signal comes in between
        connection.sendall(reply("sa(ss)u(st)", values))

    with listening(tmp_path, greeted(answer)) as path:
        assert call(path) == values


def test_an_error_is_told_in_the_peers_words(tmp_path: Path) -> None:
    error = reply("s", ["Unit x is not loaded"], kind=3, fields={4: ("s", "org.x.NoSuchUnit")})

    with (
        listening(tmp_path, greeted(lambda connection, _: connection.sendall(error))) as path,
        pytest.raises(DBusError, match=r"^M: Unit x is not loaded$"),
    ):
        call(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "the peer closed the connection", id="nothing"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "the peer does not speak D-Bus", id="another-protocol"),
        pytest.param(reply("s", ["x"])[:-3], "the peer closed the connection", id="cut"),
        pytest.param(struct.pack("<4BIII", ord("l"), 2, 0, 1, LIMIT, 1, 16), "the peer's message is too long", id="huge"),
        pytest.param(reply("s", ["x"]).replace(b"\1s\0", b"\1\x7f\0"), "a value of a type that is not read here", id="a-type-of-no-meaning"),
        pytest.param(reply("g", ["s"]).replace(b"\1g\0", b"\1s\0", 1), "a message ends too early", id="another-type-than-said"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_an_error(tmp_path: Path, data: bytes, message: str) -> None:
    with (
        listening(tmp_path, greeted(lambda connection, _: connection.sendall(data))) as path,
        pytest.raises(DBusError) as caught,
    ):
        call(path)

    assert message in str(caught.value)


def slowly(connection: socket.socket, asked: bytes) -> None:
    for _ in range(10):
        connection.sendall(b"l")
        time.sleep(0.1)


def signals_for_ever(connection: socket.socket, asked: bytes) -> None:
    for _ in range(50):
        connection.sendall(reply("", [], kind=4))
        time.sleep(0.02)


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(lambda connection: time.sleep(1), id="says-nothing"),
        pytest.param(greeted(lambda connection, asked: time.sleep(1)), id="greets-and-says-nothing"),
        pytest.param(greeted(slowly), id="says-it-slowly"),
        pytest.param(greeted(signals_for_ever), id="signals-for-ever"),
    ],
)
def test_a_peer_that_does_not_answer_costs_the_deadline(tmp_path: Path, peer: Peer) -> None:
    started = time.monotonic()

    with listening(tmp_path, peer) as path:
        with pytest.raises(TimeoutError):
            call(path, 0.3)
        took = time.monotonic() - started

    assert 0.25 < took < 0.9


def saying(data: bytes) -> Peer:
    """A peer that says this whatever it is told."""

    def peer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(data)

    return peer


def test_a_peer_that_refuses_the_user(tmp_path: Path) -> None:
    with (
        listening(tmp_path, saying(b"REJECTED EXTERNAL\r\n")) as path,
        pytest.raises(DBusError, match=r"^the peer does not accept this user$"),
    ):
        call(path)


def test_a_greeting_without_an_end(tmp_path: Path) -> None:
    with (
        listening(tmp_path, saying(b"x" * 4096)) as path,
        pytest.raises(DBusError, match=r"^the peer's greeting has no end$"),
    ):
        call(path)


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for signature in ("a(yv)", "sa(ss)", "v", "aav"):
        reader = _Reader(data, "little", 0)
        try:
            for one in _types(signature):
                reader.value(one)
        except DBusError:
            pass


@pytest.mark.fuzz
@given(st.text(alphabet="ybnqiuxtsogav(){}", max_size=40))
def test_no_signature_raises_anything_else(signature: str) -> None:
    try:
        assert "".join(_types(signature)) == signature
    except DBusError:
        pass


def test_a_call_is_as_the_specification_says() -> None:
    sent = _message(1, {1: "/o", 2: "i.f", 3: "M", 8: "s"}, "s", ["x"])

    assert sent.startswith(struct.pack("<4BII", ord("l"), 1, 0, 1, 6, 1))
    assert sent.endswith(b"\1\0\0\0x\0")
    assert (len(sent) - 6) % 8 == 0

"""A D-Bus client of a few calls: what systemd needs to be asked and told, and nothing else.

Source: D-Bus specification 0.43, "Authentication Protocol", "Message Protocol", "Type System". A library for
it costs a create three times what an interpreter does.
"""

import _socket as socket  # socket itself imports enum and selectors
import posix as os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 1 << 20  # bytes of one message; what systemd says of a unit's devices is some KiB

_CALL, _REPLY, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8
_HEADER_TYPES = {_PATH: "o", _INTERFACE: "s", _MEMBER: "s", _DESTINATION: "s", _SIGNATURE: "g"}
_DEPTH = 8  # of types in types


class DBusError(Exception):
    """The peer answers with an error, or with what is no D-Bus message."""


class Connection:
    """A connection to *path*, a socket; every call ends by *deadline* (seconds from now, for all of them)."""

    __slots__ = ("_deadline", "_destination", "_serial", "_socket")

    def __init__(self, path: str, deadline: float, *, destination: str = "") -> None:
        """*destination*: the name of the peer where *path* is a bus, empty where it is the peer's own."""
        self._deadline = time.monotonic() + deadline
        self._serial = 0
        self._destination = destination
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._patience()
            self._socket.connect(path)
            self._authenticate()
            if destination:
                self._call(
                    "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", "", []
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(self, path: str, interface: str, member: str, signature: str, body: "list[Any]") -> "list[Any]":
        """The values that *member* of *interface* answers for the object *path*; DBusError or OSError."""
        return self._call(self._destination, path, interface, member, signature, body)

    def _call(
        self, destination: str, path: str, interface: str, member: str, signature: str, body: "list[Any]"
    ) -> "list[Any]":
        self._serial += 1
        fields = {_PATH: path, _INTERFACE: interface, _MEMBER: member}
        if destination:
            fields[_DESTINATION] = destination
        if signature:
            fields[_SIGNATURE] = signature
        self._send(_message(self._serial, fields, signature, body))
        while True:
            kind, answered, name, values = self._receive()
            if answered != self._serial or kind not in (_REPLY, _ERROR):
                continue  # a signal, or NameAcquired of a bus
            if kind == _ERROR:
                said = values[0] if values and isinstance(values[0], str) else ""
                raise DBusError(f"{member}: {said or name}")
            return values

    def _authenticate(self) -> None:
        user = str(os.geteuid()).encode().hex()
        # BEGIN with the rest, as sd-bus does: its server forgets a call that comes in one piece with BEGIN
        # until something else comes.
        self._send(f"\0AUTH EXTERNAL {user}\r\nBEGIN\r\n".encode())
        said = b""
        while not said.endswith(b"\r\n"):
            said += self._read(1)
            if len(said) > 1024:
                raise DBusError("the peer's greeting has no end")
        if not said.startswith(b"OK "):
            raise DBusError("the peer does not accept this user")

    def _patience(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left)

    def _send(self, data: bytes) -> None:
        self._patience()
        self._socket.sendall(data)

    def _read(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            self._patience()
            part = self._socket.recv(min(size - len(out), 65536))
            if not part:
                raise DBusError("the peer closed the connection")
            out += part
        return out

    def _receive(self) -> "tuple[int, int, str, list[Any]]":
        """Kind, serial that it answers, error name and values of the next message."""
        start = self._read(16)
        if start[0] not in b"lB" or start[3] != 1:
            raise DBusError("the peer does not speak D-Bus")
        order = "little" if start[0] == ord("l") else "big"
        body, fields = (int.from_bytes(start[at : at + 4], order) for at in (4, 12))  # type: ignore[arg-type]
        padding = -fields % 8
        if body + fields > LIMIT:
            raise DBusError("the peer's message is too long")
        rest = self._read(fields + padding + body)
        header = _Reader(start + rest[:fields], order, 12)
        known = dict(header.value("a(yv)"))
        signature = known.get(_SIGNATURE, "")
        reader = _Reader(rest[fields + padding :], order, 0)
        values = [reader.value(one) for one in _types(signature)]
        return start[1], known.get(_REPLY_SERIAL, 0), str(known.get(_ERROR_NAME, "")), values


def _message(serial: int, fields: "dict[int, str]", signature: str, body: "list[Any]") -> bytes:
    content = _Writer()
    for one, value in zip(_types(signature), body, strict=True):
        content.value(one, value)
    head = _Writer()
    head.data += bytes((ord("l"), _CALL, 0, 1))
    head.value("u", len(content.data))
    head.value("u", serial)
    head.value("a(yv)", [(key, (_HEADER_TYPES[key], value)) for key, value in fields.items()])
    head.align(8)
    return bytes(head.data + content.data)


def _types(signature: str) -> list[str]:
    """The complete types that *signature* is made of."""
    out, at = [], 0
    while at < len(signature):
        end = _end(signature, at, 0)
        out.append(signature[at:end])
        at = end
    return out


def _end(signature: str, at: int, depth: int) -> int:
    """Where the type that begins at *at* ends."""
    if at >= len(signature) or depth > _DEPTH:
        raise DBusError(f"a type is cut or too deep: {signature[:80]!r}")
    if signature[at] == "a":
        return _end(signature, at + 1, depth + 1)
    if signature[at] not in "({":
        return at + 1
    close = ")" if signature[at] == "(" else "}"
    at += 1
    while signature[at : at + 1] != close:
        at = _end(signature, at, depth + 1)
    return at + 1


_ALIGN = {
    "y": 1,
    "g": 1,
    "v": 1,
    "n": 2,
    "q": 2,
    "b": 4,
    "i": 4,
    "u": 4,
    "s": 4,
    "o": 4,
    "a": 4,
    "x": 8,
    "t": 8,
}
_INTEGERS = {
    "y": (1, False),
    "n": (2, True),
    "q": (2, False),
    "b": (4, False),
    "i": (4, True),
    "u": (4, False),
}
_INTEGERS |= {"x": (8, True), "t": (8, False)}


class _Writer:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, to: int) -> None:
        self.data += bytes(-len(self.data) % to)

    def value(self, kind: str, value: "Any") -> None:
        self.align(_ALIGN.get(kind[0], 8))
        if kind[0] in _INTEGERS:
            size, signed = _INTEGERS[kind[0]]
            self.data += int(value).to_bytes(size, "little", signed=signed)
        elif kind[0] in "sog":
            text = value.encode("utf-8")
            self.data += len(text).to_bytes(1 if kind == "g" else 4, "little") + text + b"\0"
        elif kind[0] == "v":
            self.value("g", value[0])
            self.value(value[0], value[1])
        elif kind[0] == "a":
            self._array(kind[1:], value)
        else:
            for one, part in zip(_types(kind[1:-1]), value, strict=True):
                self.value(one, part)

    def _array(self, kind: str, values: "list[Any]") -> None:
        at = len(self.data)
        self.data += bytes(4)
        self.align(_ALIGN.get(kind[0], 8))
        start = len(self.data)
        for value in values:
            self.value(kind, value)
        self.data[at : at + 4] = (len(self.data) - start).to_bytes(4, "little")


class _Reader:
    __slots__ = ("at", "data", "order")

    def __init__(self, data: bytes, order: "Any", at: int) -> None:
        self.data = data
        self.order = order
        self.at = at

    def _take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise DBusError("a message ends too early")
        self.at += size
        return part

    def value(self, kind: str, depth: int = 0) -> "Any":
        if depth > _DEPTH:
            raise DBusError("a value is too deep")
        self._take(-self.at % _ALIGN.get(kind[0], 8))
        if kind[0] in _INTEGERS:
            size, signed = _INTEGERS[kind[0]]
            return int.from_bytes(self._take(size), self.order, signed=signed)
        if kind[0] in "sog":
            size = int.from_bytes(self._take(1 if kind[0] == "g" else 4), self.order)
            return self._take(size + 1)[:-1].decode("utf-8", "replace")
        if kind[0] == "v":
            inner = _types(self.value("g"))
            if len(inner) != 1:
                raise DBusError("a variant is not of one type")
            return self.value(inner[0], depth + 1)
        if kind[0] == "a":
            return self._array(kind[1:], depth)
        if kind[0] in "({":
            return tuple([self.value(one, depth + 1) for one in _types(kind[1:-1])])
        raise DBusError(f"a value of a type that is not read here: {kind[:80]!r}")

    def _array(self, kind: str, depth: int) -> "list[Any]":
        size = int.from_bytes(self._take(4), self.order)
        self._take(-self.at % _ALIGN.get(kind[0], 8))
        end, out = self.at + size, []
        if end > len(self.data):
            raise DBusError("an array ends behind its message")
        while self.at < end:
            out.append(self.value(kind, depth + 1))
        return out

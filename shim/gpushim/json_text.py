"""JSON texts in and out without loss, and without `json`, whose decoder imports `re`: 8 ms of a create's 15.

CPython's private scanner and encoder do the work and `json` is the judge when they say no: on any failure the
text is parsed again by it, for its message. Signatures seen alike in CPython 3.10 to 3.14.

What the runtimes make of odd texts (runc 1.1, crun 1.8): an object that holds a key twice is merged by runc,
and crun takes the first, so it is refused here; each byte that is not UTF-8 is one U+FFFD to Go.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLANK = " \t\n\r"
_NOT_UTF8 = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")


def _constant(name: str) -> "Any":
    raise ValueError(f"{name} is not JSON")


def _object(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    tree = dict(pairs)
    if len(tree) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} occurs twice in one object")
            seen.add(key)
    return tree


class _Context:
    """What `_json.make_scanner` reads of a json.JSONDecoder."""

    strict = True
    object_hook = None
    array_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_constant)


_scan: "Any" = None
_encode: "Any" = None
try:
    import _json

    _scan = _json.make_scanner(_Context)  # type: ignore[arg-type]
    _encode = _json.make_encoder(
        None,
        None,  # type: ignore[arg-type]
        _json.encode_basestring_ascii,
        None,
        ":",
        ",",
        False,
        False,
        False,
    )
except (ImportError, TypeError, AttributeError):
    pass  # private to CPython: where it has changed, json does both


def decode(data: bytes) -> str:
    """The text of *data* as Go reads it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape").translate(_NOT_UTF8)


def loads(text: str) -> "Any":
    """The tree of *text*; ValueError, with line and column where it has one, or RecursionError."""
    if _scan:
        try:
            tree, end = _scan(text, len(text) - len(text.lstrip(_BLANK)))
            if not text[end:].strip(_BLANK):
                return tree
        # SystemError: up to 3.11 the scanner wants json.decoder's error class, which is not loaded.
        except (ValueError, StopIteration, SystemError):
            pass
    import json  # only to say what is wrong

    return json.loads(text, parse_constant=_constant, object_pairs_hook=_object)


def dumps(tree: "Any") -> str:
    """Compact and pure ASCII, so that a lone surrogate survives; ValueError for a number JSON has not."""
    if _encode:
        return "".join(_encode(tree, 0))
    import json

    return json.dumps(tree, separators=(",", ":"), allow_nan=False)

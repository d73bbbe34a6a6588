"""gpushim.json_text: nothing is lost between reading and writing."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.json_text import decode, dumps, loads

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values)
def test_what_json_writes_is_read_alike(value: object) -> None:
    assert loads(json.dumps(value)) == value


@given(values)
def test_what_is_written_json_reads_alike(value: object) -> None:
    assert json.loads(dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"b":18446744073709551615,"a":-9223372036854775808}', id="64-bit-integers"),
        pytest.param('{"k":12345678901234567890123456789}', id="any-integer"),
        pytest.param('{"z":{"y":[],"x":{}},"n":null,"t":true}', id="key-order"),
        pytest.param('{"s":"\\ud800 \\u0000 \\ud83d\\ude00 \\u2028"}', id="odd-unicode"),
        pytest.param('{"f":1000.0,"h":0.1}', id="floats"),
    ],
)
def test_a_text_survives(text: str) -> None:
    assert dumps(loads(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a":1', id="truncated"),
        pytest.param('{"a":1,}', id="trailing-comma"),
        pytest.param("", id="empty"),
        pytest.param("  ", id="blank"),
        pytest.param('{"a":1}x', id="more-behind"),
        pytest.param("[NaN]", id="nan"),
        pytest.param('["\t"]', id="raw-tab"),
        pytest.param("\ufeff{}", id="byte-order-mark"),
        pytest.param('{"a":1,"a":2}', id="key-twice"),
        pytest.param('{"n":' + "9" * 5000 + "}", id="integer-beyond-the-limit"),
    ],
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_a_key_that_occurs_twice_is_named() -> None:
    with pytest.raises(ValueError, match="the key 'env' occurs twice in one object"):
        loads('{"process":{"env":[],"args":[],"env":[]}}')


def test_a_number_that_json_has_not_is_not_written() -> None:
    with pytest.raises(ValueError):
        dumps(loads("[1E400]"))


def test_bytes_that_are_not_utf8_read_as_go_reads_them() -> None:
    assert decode(b"\xe2\x82|\xff|\xed\xa0\x80") == "\ufffd\ufffd|\ufffd|\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("broken", ["raise ImportError", "make_scanner = None"])
def test_json_does_it_all_where_the_private_parts_have_changed(broken: str) -> None:
    program = f"""
import sys, types
fake = types.ModuleType("_json")
exec({broken!r}.replace("raise ImportError", ""), fake.__dict__)
sys.modules["_json"] = {"None" if broken.startswith("raise") else "fake"}
from gpushim.json_text import dumps, loads
assert dumps(loads('{{"b": 1, "a": [2.5, "\\u2028"]}}')) == '{{"b":1,"a":[2.5,"\\\\u2028"]}}'
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_key_that_occurs_twice_is_found_among_many() -> None:
    many = ",".join(f'"{n}":0' for n in range(200_000))

    with pytest.raises(ValueError, match="the key '199999' occurs twice"):
        loads(f'{{{many},"199999":1}}')

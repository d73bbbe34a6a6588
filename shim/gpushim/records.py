"""All that is kept of containers (record.py): read, and swept once a container is gone."""

import posix as os
import time

from gpushim import state
from gpushim.json_text import decode, loads
from gpushim.record import DIRECTORY, SCHEMA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOKED_AT = 16  # records, by one sweep


def read_all(state_dir: str) -> "list[dict[str, Any]]":
    """Every record of a container whose bundle is still there."""
    directory = f"{state_dir}/{DIRECTORY}"
    found = [_read(directory, name) for name in _names(directory)]
    return [one for one in found if one is not None and not _is_gone(one)]


def sweep(directory: str) -> None:
    """Take away the records of containers that are gone: a few, and others each time."""
    names = _names(directory)
    start = time.monotonic_ns() // 1000
    for n in range(min(_LOOKED_AT, len(names))):
        name = names[(start + n) % len(names)]
        found = _read(directory, name)
        if found is None or _is_gone(found):
            try:
                os.unlink(f"{directory}/{name}")
            except OSError:
                pass  # another create was faster


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.endswith(".tmp")]
    except OSError:
        return []  # none was kept yet


def _read(directory: str, name: str) -> "dict[str, Any] | None":
    data = state.read(directory, name)
    if data is None:
        return None
    try:
        found = loads(decode(data))
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _is_gone(found: "dict[str, Any]") -> bool:
    try:
        os.stat(found["bundle"])
    except OSError:
        return True
    return False

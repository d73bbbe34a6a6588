"""What a runtime tells a hook on standard input.

Source: OCI runtime-spec, runtime.md, "State". Read leniently: runc and crun differ in `status`, `pid` and
`ociVersion`.
"""

from gpushim.errors import InvalidState
from gpushim.files import read_fd
from gpushim.json_text import decode, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 1 << 20  # bytes; what the launcher hands on (hook.c)


class State:
    """The container that a hook is started for; *pid* is its init as the host sees it."""

    __slots__ = ("bundle", "id", "pid")

    def __init__(self, id: str, pid: int, bundle: str) -> None:
        self.id = id
        self.pid = pid
        self.bundle = bundle


def read_state(fd: int, *, living: bool = True) -> State:
    """The state on the descriptor *fd*; InvalidState where it is none.

    *living*: the container must have a process as the host sees it, which the stages createRuntime and
    prestart promise and the others do not.
    """
    data = read_fd(fd, "standard input", LIMIT)
    if not data.strip():
        raise InvalidState(
            "GS0750",
            "standard input: is empty",
            hint="a runtime starts this as a hook; `gpushim explain BUNDLE` shows what it would do",
        )
    try:
        found = loads(decode(data))
    except (ValueError, RecursionError) as problem:
        raise InvalidState("GS0751", f"standard input: is no OCI state: {problem}") from problem
    if not isinstance(found, dict):
        raise InvalidState("GS0752", "standard input: is no OCI state: not a JSON object")
    bundle = found.get("bundle", found.get("bundlePath"))  # runc before 1.0.0-rc4
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise InvalidState("GS0753", f"standard input: bundle: is not an absolute path: {bundle!r}")
    pid = found.get("pid", 0)
    if living and (not _is_number(pid) or pid <= 1):
        raise InvalidState(
            "GS0754",
            f"standard input: pid: is no process of a container: {pid!r}",
            hint="this hook belongs into hooks.createRuntime or hooks.prestart",
        )
    return State(str(found.get("id", "")), pid if _is_number(pid) else 0, bundle)


def _is_number(value: "Any") -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value < 1 << 31

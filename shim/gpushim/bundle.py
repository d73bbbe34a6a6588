"""config.json of an OCI bundle: lossless in, atomic out.

Source: OCI runtime-spec, bundle.md and config.md. The tree stays what it was but for what edits.py changes:
unknown fields, key order and integers of any size survive.
"""

import posix as os

from gpushim import files
from gpushim.errors import InvalidBundle
from gpushim.json_text import decode, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import stat_result
    from typing import Any

LIMIT = 32 << 20  # bytes; 50,000 environment entries are 2 MiB

# Each object this program reads or changes, by the way to it, with the keys it looks at. Go's decoder takes a
# key in any letter case and crun does not: with a variant beside or instead of these, two runtimes see two
# configs.
_KEYS = {
    (): ("annotations", "hooks", "linux", "mounts", "process", "root"),
    ("process",): ("capabilities", "env", "user"),
    ("process", "capabilities"): ("bounding",),
    ("process", "user"): ("additionalGids", "gid", "uid"),
    ("linux",): ("devices", "namespaces", "resources"),
    ("linux", "resources"): ("devices",),
    ("hooks",): ("createRuntime", "prestart"),
}
# What each of them holds, so that the pure modules can rely on it.
_SHAPES = {
    ("annotations",): dict,
    ("hooks",): dict,
    ("hooks", "createRuntime"): list,
    ("hooks", "prestart"): list,
    ("linux",): dict,
    ("linux", "devices"): list,
    ("linux", "namespaces"): list,
    ("linux", "resources"): dict,
    ("linux", "resources", "devices"): list,
    ("mounts",): list,
    ("process",): dict,
    ("process", "env"): list,
    ("process", "user"): dict,
    ("process", "user", "additionalGids"): list,
    ("process", "user", "gid"): int,
    ("process", "user", "uid"): int,
    ("root",): dict,
}
# The lists of objects among them, and what the fields that are read hold.
_HOOK: "dict[str, type]" = {"path": str}
_ITEMS: "dict[tuple[str, ...], dict[str, type]]" = {
    ("hooks", "createRuntime"): _HOOK,
    ("hooks", "prestart"): _HOOK,
    ("linux", "devices"): {"path": str, "type": str, "major": int, "minor": int},
    ("linux", "namespaces"): {"type": str},
    ("linux", "resources", "devices"): {"type": str, "major": int, "minor": int, "access": str},
    ("mounts",): {"destination": str, "type": str, "options": list},
}
_JSON_NAMES: "dict[type, str]" = {dict: "an object", list: "an array", str: "a string", int: "an integer"}


class Bundle:
    """The tree of one config.json, and the file it came from."""

    __slots__ = ("config", "path", "stat")

    def __init__(self, path: str, stat: "stat_result", config: "dict[str, Any]") -> None:
        self.path = path
        self.stat = stat
        self.config = config


def open_bundle(directory: str, name: str = "config.json") -> Bundle:
    """The bundle at *directory*; InvalidBundle or OSError when it is none.

    *name* with a `/` is a path of its own, not one in the bundle: crun reads --config from its own directory.
    """
    path = name if "/" in name else f"{directory}/{name}"
    # O_NONBLOCK: a FIFO in the place of the file must not hold us.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        stat = os.fstat(fd)
        if stat.st_mode & 0o170000 != 0o100000:
            raise InvalidBundle("GS0101", f"{path}: is not a regular file")
        if stat.st_size > LIMIT:
            raise InvalidBundle("GS0102", f"{path}: is larger than {LIMIT >> 20} MiB")
        data = files.read_fd(fd, path, LIMIT)
        if os.lstat(path).st_ino != stat.st_ino:
            # A link: what is replaced is the file it leads to.
            path = os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return Bundle(path, stat, parse(data, path))


def parse(data: bytes, path: str) -> "dict[str, Any]":
    """The config in *data*, its objects of the shapes the runtime-spec gives them; *path* is for messages."""
    try:
        config = loads(decode(data))
    except ValueError as problem:
        raise InvalidBundle("GS0103", f"{path}: {problem}") from problem
    except RecursionError as problem:
        raise _too_deep(path) from problem
    if not isinstance(config, dict):
        raise InvalidBundle("GS0105", f"{path}: is not a JSON object")
    _check(config, path)
    return config


def write(bundle: Bundle) -> None:
    """Replace config.json by what the tree is now, with the mode and owner the file had."""
    try:
        data = dumps(bundle.config).encode("ascii")
    except ValueError as problem:  # 1E400 was read as infinity
        raise InvalidBundle("GS0106", f"{bundle.path}: a number is out of range") from problem
    except RecursionError as problem:
        raise _too_deep(bundle.path) from problem
    files.replace(bundle.path, data, bundle.stat.st_mode & 0o7777, bundle.stat)


def _too_deep(path: str) -> InvalidBundle:
    return InvalidBundle("GS0104", f"{path}: is nested too deeply")


def _check(config: "dict[str, Any]", path: str) -> None:
    for way, shape in _SHAPES.items():
        value = _at(config, way)
        if value is not None and not isinstance(value, shape):
            raise InvalidBundle("GS0107", f"{path}: {'.'.join(way)}: is not {_JSON_NAMES[shape]}")
    for way, fields in _ITEMS.items():
        for n, item in enumerate(_at(config, way) or ()):
            if not isinstance(item, dict):
                raise InvalidBundle("GS0108", f"{path}: {'.'.join(way)}[{n}]: is not an object")
            for name, shape in fields.items():
                value = item.get(name)
                if value is not None and not isinstance(value, shape):
                    where = f"{'.'.join(way)}[{n}].{name}"
                    raise InvalidBundle("GS0112", f"{path}: {where}: is not {_JSON_NAMES[shape]}")
    for way, shape in ((("process", "env"), str), (("process", "user", "additionalGids"), int)):
        for n, entry in enumerate(_at(config, way) or ()):
            if not isinstance(entry, shape):
                where = f"{'.'.join(way)}[{n}]"
                raise InvalidBundle("GS0109", f"{path}: {where}: is not {_JSON_NAMES[shape]}")
    for way, keys in _KEYS.items():
        present = _at(config, way)
        if isinstance(present, dict):
            _check_case(present, keys, way, path)


def _check_case(tree: "dict[str, Any]", keys: tuple[str, ...], way: tuple[str, ...], path: str) -> None:
    folded = {key.casefold(): key for key in keys}
    for key in tree:
        meant = folded.get(key.casefold())
        if meant is not None and meant != key:
            raise InvalidBundle(
                "GS0110",
                f"{path}: {'.'.join((*way, key))}: runc reads this as {meant!r} and crun does not",
                hint=f"write {'.'.join((*way, meant))}",
            )


def _at(config: "dict[str, Any]", way: tuple[str, ...]) -> "Any":
    """The value at the end of *way*, None where a step is missing, null or no object."""
    value: Any = config
    for step in way:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value

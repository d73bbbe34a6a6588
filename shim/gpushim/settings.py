"""The effective settings: config.toml in its compiled form.

A flat dict: the dotted key as the administrator writes it, to its value. The compiled file serves the
launcher too (cffi_src/compiled.c); it is fresh as long as config.toml is the very file it came
from.
"""

import posix as os

from gpushim import __version__, state
from gpushim.json_text import decode, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLES = (b"GPUSHIM_CONFIG", b"NVIDIA_CTK_CONFIG_FILE_PATH")
FILES = ("/etc/gpushim/config.toml", "/etc/nvidia-container-runtime/config.toml")

_MAGIC = f"gpushim-settings={__version__}"


class Selected:
    """Which config.toml counts: `path` is empty where there is none, `variable` empty where none names it."""

    __slots__ = ("path", "variable")

    def __init__(self, path: str, variable: str = "") -> None:
        self.path = path
        self.variable = variable


def select(environ: dict[bytes, bytes]) -> Selected:
    """The first that a variable names, else the first that exists."""
    for variable in VARIABLES:
        if environ.get(variable):
            return Selected(_text(environ[variable]), variable.decode())
    for path in FILES:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass  # one that may not be looked at counts, and is an error to be told
        return Selected(path)
    return Selected("")


def load(environ: dict[bytes, bytes]) -> "dict[str, Any]":
    """The settings in effect, compiled anew where they are stale; InvalidSettings where they are none."""
    selected = select(environ)
    found = _compiled(environ, selected)
    if found is not None and found[1] == identity(selected):
        return found[0]
    values, data = _compile(selected)
    _keep(environ, selected, data)
    return values


def refresh(environ: dict[bytes, bytes]) -> bool:
    """Compile anew and keep it; whether it could be kept."""
    selected = select(environ)
    return _keep(environ, selected, _compile(selected)[1])


def last(environ: dict[bytes, bytes]) -> "dict[str, Any]":
    """The settings last compiled for this config.toml, however stale; the defaults where there are none."""
    found = _compiled(environ, select(environ))
    if found is not None:
        return found[0]
    from gpushim import settings_file

    return settings_file.defaults()


def identity(selected: Selected) -> str:
    """Device, inode, size and mtime in ns of the file; empty where there is none."""
    try:
        stat = os.stat(selected.path)
    except OSError:
        return ""
    return f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def state_dir(environ: dict[bytes, bytes]) -> str:
    """Where what is known of this node is kept until the next boot."""
    if environ.get(b"GPUSHIM_STATE"):
        return _text(environ[b"GPUSHIM_STATE"])
    if os.geteuid() == 0:
        return "/run/gpushim"
    return _text(environ.get(b"XDG_RUNTIME_DIR", b"/nonexistent")) + "/gpushim"


def _directories(environ: dict[bytes, bytes]) -> list[str]:
    """Where the compiled form may stand, best first: it survives a reboot."""
    if environ.get(b"GPUSHIM_STATE"):
        return [_text(environ[b"GPUSHIM_STATE"])]
    out = ["/var/lib/gpushim"]
    if environ.get(b"XDG_RUNTIME_DIR"):
        out.append(_text(environ[b"XDG_RUNTIME_DIR"]) + "/gpushim")
    return out


def _name(selected: Selected) -> str:
    """Two engines that name two files do not overwrite each other's."""
    return f"settings-{state.name_of(selected.path)}" if selected.variable else "settings"


def _compiled(environ: dict[bytes, bytes], selected: Selected) -> "tuple[dict[str, Any], str] | None":
    """The compiled settings of *selected* and the identity of what they came from."""
    for directory in _directories(environ):
        data = state.read(directory, _name(selected))
        if data is None:
            continue
        records = decode(data).split("\0")
        if len(records) < 4 or records[0] != _MAGIC or records[1] != f"config={selected.path}":
            continue
        try:
            values: dict[str, Any] = loads(records[-2].removeprefix("json="))
        except ValueError:
            continue
        return values, records[2].removeprefix("identity=")
    return None


def _compile(selected: Selected) -> "tuple[dict[str, Any], bytes]":
    from gpushim import settings_file  # cold: a TOML parser

    # Before the reading: a file that changes meanwhile is stale, not taken for what it became.
    which = identity(selected)
    values = settings_file.effective(selected.path, selected.variable).values
    return values, settings_file.compiled(values, selected.path, which)


def _keep(environ: dict[bytes, bytes], selected: Selected, data: bytes) -> bool:
    return any(state.keep(directory, _name(selected), data) for directory in _directories(environ))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")

"""gpushim-hook: the command line, its log, and the one place that catches."""

import posix as os
import sys

from gpushim import bundle, log, settings
from gpushim.errors import InvalidCall, ShimError, in_words
from gpushim.resolution import settings_for
from gpushim_hooks.state import State, read_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Options with a value; the launcher has put the first two into the environment (cffi_src/hook.c).
_VALUES = ("config", "state", "log")
_FLAGS = ("debug", "version")
# NVIDIA's hook under its old names has one of these for each stage, and does nothing in two of them.
_NOTHING = ("poststart", "poststop")


class Call:
    """A command line of the hook: its command, and the options by name."""

    __slots__ = ("command", "options")

    def __init__(self) -> None:
        self.command = ""
        self.options: dict[str, str] = {}


def parse(args: list[str]) -> Call:
    """*args* with options of one or two dashes, as NVIDIA's hook takes them; InvalidCall for others."""
    call = Call()
    words = iter(args)
    for word in words:
        if not word.startswith("-"):
            if call.command:
                raise InvalidCall("GS0710", f"{word!r}: one command, and it is {call.command!r}")
            call.command = word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name in _VALUES:
            value = value if equals else next(words, "")
            if not value:
                raise InvalidCall("GS0711", f"--{name}: has no value")
            call.options[name] = value
        elif name in _FLAGS:
            call.options[name] = "true"
        else:
            raise InvalidCall("GS0712", f"{word!r}: unknown option")
    return call


def main(args: list[str]) -> "NoReturn":
    """Do what the command of *args* says; every failure is told on standard error and in the hook's log."""
    target = _log_file(args)
    state = State("", 0, "")
    try:
        call = parse(args)
        if "version" in call.options:
            from gpushim import __version__

            os.write(1, f"gpushim-hook version {__version__}\n".encode())
            sys.exit(0)
        if call.command in _NOTHING:
            sys.exit(0)
        state = read_state(0, living=call.command != "create-container")
        warnings = _run(_stage(call.command), state)
    except (ShimError, OSError, MemoryError) as problem:
        text = log.printable(in_words(problem))
        os.write(2, f"gpushim-hook: {text}\n".encode("utf-8", "backslashreplace"))
        log.line(target, f"{state.id or '-'}: {text}")
        sys.exit(1)
    for warning in warnings:
        log.line(target, f"{state.id}: warning: {log.printable(warning)}")
    sys.exit(0)


def _run(stage: "Any", state: State) -> list[str]:
    found = bundle.open_bundle(state.bundle)
    effective = settings_for(found.config, os.environ)
    if effective is None:
        return []
    out: list[str] = stage(state, found.config, effective, settings.state_dir(os.environ))
    return out


def _stage(command: str) -> "Any":
    if command in ("create-runtime", "prestart"):
        from gpushim_hooks.create_runtime import create_runtime

        return create_runtime
    if command == "create-container":
        from gpushim_hooks.create_container import create_container

        return create_container
    raise InvalidCall(
        "GS0706",
        f"{command!r}: unknown command" if command else "a command is missing",
        hint="create-runtime, prestart or create-container, as the stage of the hook",
    )


def _log_file(args: list[str]) -> str:
    """Where this hook tells what it did, whatever *args* are: crun shows nothing of its output."""
    for n, word in enumerate(args):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "log":
            return value if equals else "".join(args[n + 1 : n + 2])
    return settings.state_dir(os.environ) + "/hook.log"

"""The device programs of a cgroup2 directory: asked, and widened in place.

A device may be used when every program of the cgroup and of those above it says so. So nothing is ever added
beside them: each is replaced, at once, by itself with a block in front of it that allows more. Source: kernel
Documentation/admin-guide/cgroup-v2.rst, "Device controller"; kernel/bpf/cgroup.c.
"""

import errno
import posix as os
import time

from gpushim import linux
from gpushim.errors import Refused
from gpushim_hooks import emulator
from gpushim_hooks.instructions import (
    CALL,
    CHAR,
    CLASS,
    JMP,
    JMP32,
    LD,
    LDX,
    LOAD_64,
    OPERATION,
    ST,
    STX,
    Instruction,
    access_bits,
    allowing,
    decode,
    encode,
    merged,
    unblinded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.device_rule import DeviceRule

_NAME = "gpushim"
_TRIES = 40
# Seconds before the second try; each later one waits longer. runc and systemd replace programs now and then.
_PAUSE = 0.0005

# What a container's rules commonly speak of, beside the neighbours of what is added: the same before and after.
_GRID = ((1, 3), (1, 5), (1, 8), (5, 0), (5, 2), (10, 200), (10, 229), (136, 0), (195, 0), (195, 255), (240, 7))


class Program:
    """One device program as the kernel shows it; `why` says why `instructions` is None, or cannot be loaded."""

    __slots__ = ("gpl", "id", "instructions", "name", "why")

    def __init__(self, loaded: "linux.Loaded") -> None:
        self.id = loaded.id
        self.name = loaded.name
        self.gpl = loaded.gpl
        self.instructions: list[Instruction] | None = None
        self.why = ""
        if not loaded.code:
            self.why = "the kernel does not show it (net.core.bpf_jit_harden with kernel.kptr_restrict)"
            return
        self.instructions = decode(loaded.code)
        try:
            self.instructions = unblinded(self.instructions)
            _check_loadable(self.instructions)
        except ValueError as problem:
            self.why = str(problem)

    def describe(self) -> str:
        return f"BPF program {self.id} ({self.name or 'without a name'})"

    def answer(self, major: int, minor: int, access: str, kind: int = CHAR) -> "bool | None":
        """Whether it allows all of *access* to the device, asked at once as open(2) does; None is unknown."""
        if self.instructions is None:
            return None
        try:
            return emulator.answer(self.instructions, kind, access_bits(access), major, minor)
        except emulator.Unknown:
            return None


def programs(cgroup: int, *, effective: bool) -> list[Program]:
    """The device programs of the directory *cgroup*; *effective*: with those of the directories above it.

    Refused where the kernel does not let this process look.
    """
    while True:
        ids, _ = linux.device_programs(cgroup, effective=effective)
        try:
            return [_read(id)[0] for id in ids]
        except FileNotFoundError:
            continue  # replaced between the two calls


def widen(cgroup: int, rules: "list[DeviceRule]") -> None:
    """Have each program of the directory *cgroup* itself allow *rules* too; Refused where one cannot be made to.

    All of them, or none. Where no program is attached everything is allowed, and stays so.
    """
    ranges = merged(rules)
    stuck: list[int] = []
    for n in range(_TRIES):
        try:
            _widen(cgroup, rules, ranges)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.EBUSY, errno.EAGAIN):
                raise
            # A racing runtime changes the ids. One that stays, and is not there for us, hangs on a link.
            listed = linux.device_programs(cgroup, effective=False)[0]
            if n >= 4 and listed == stuck:
                raise Refused(
                    "GS0720",
                    f"a device program of the cgroup ({', '.join([str(id) for id in listed])}) is attached by "
                    "a BPF link, and only the link's owner can replace it",
                    hint="use gpushim-runtime, whose rules the runtime sets itself",
                ) from problem
            stuck = listed
            time.sleep(_PAUSE * (n + 1))
            continue
        return
    raise Refused("GS0721", "the device programs of the cgroup change all the time: they could not be replaced")


def _widen(cgroup: int, rules: "list[DeviceRule]", ranges: "list[tuple[int, int | None, int | None, int]]") -> None:
    ids, flags = linux.device_programs(cgroup, effective=False)
    swaps: list[tuple[int, int]] = []
    try:
        for id in ids:
            program, old = _read(id, keep=True)
            swaps.append((-1, old))
            if all(_allows(program, one) for one in ranges):
                continue
            swaps[-1] = (_widened(program, rules, ranges), old)
        # Everything that can fail by itself has been tried: now they are swapped, each at once.
        for new, old in swaps:
            if new >= 0:
                linux.replace_program(cgroup, new, old, flags)
    finally:
        for pair in swaps:
            for fd in pair:
                if fd >= 0:
                    os.close(fd)


def _read(id: int, *, keep: bool = False) -> tuple[Program, int]:
    """The program *id*, and with *keep* a descriptor of it."""
    try:
        fd = linux.program_fd(id)
    except PermissionError as problem:
        raise Refused(
            "GS0722",
            f"BPF program {id}: the kernel does not let this process see it",
            hint="this needs CAP_SYS_ADMIN in the first user namespace",
        ) from problem
    try:
        found = Program(linux.program(fd))
    except OSError:
        os.close(fd)
        raise
    if not keep:
        os.close(fd)
    return found, fd


def _widened(
    old: Program, rules: "list[DeviceRule]", ranges: "list[tuple[int, int | None, int | None, int]]"
) -> int:
    """A descriptor of a program that answers as *old* does, and allows *rules*."""
    if old.instructions is None or old.why:
        raise Refused(
            "GS0723",
            f"{old.describe()} of the cgroup cannot be widened: {old.why}",
            hint="use gpushim-runtime, whose rules the runtime sets itself",
        )
    instructions = allowing(rules) + old.instructions
    try:
        fd = linux.load_program(encode(instructions), gpl=old.gpl, name=_NAME)
    except OSError as problem:
        raise Refused(
            "GS0724",
            f"{old.describe()} of the cgroup cannot be widened: the kernel does not take it: {problem.strerror}",
            hint="use gpushim-runtime, whose rules the runtime sets itself",
        ) from problem
    try:
        # What the kernel made of it, not what was meant.
        _verify(old, Program(linux.program(fd)), ranges)
    except (Refused, OSError):
        os.close(fd)
        raise
    return fd


def _verify(old: Program, new: Program, ranges: "list[tuple[int, int | None, int | None, int]]") -> None:
    allowed = all(_allows(new, one) for one in ranges)
    same = all(
        new.answer(major, minor, access) == old.answer(major, minor, access)
        for major, minor in _others(ranges)
        for access in ("r", "w", "m", "rwm")
    )
    if not allowed or not same:
        raise Refused(
            "GS0725",
            f"{old.describe()} of the cgroup cannot be widened: the new one would not answer as it should",
            hint="this is a fault of gpushim: report it with the output of `bpftool prog dump xlated id "
            f"{old.id}`",
        )


def _others(ranges: "list[tuple[int, int | None, int | None, int]]") -> list[tuple[int, int]]:
    """Devices that no range covers: those next to one, and the grid."""
    near = [
        (major, minor)
        for major, first, last, _ in ranges
        if first is not None and last is not None
        for minor in (first - 1, last + 1)
        if minor >= 0
    ]
    return [one for one in (*near, *_GRID) if not any(_covers(range, *one) for range in ranges)]


def _covers(range: "tuple[int, int | None, int | None, int]", major: int, minor: int) -> bool:
    first, last = range[1], range[2]
    return range[0] == major and (first is None or last is None or first <= minor <= last)


def _allows(program: Program, one: "tuple[int, int | None, int | None, int]") -> bool:
    """Whether *program* allows a whole range; one that any minor is in is asked at its edges."""
    major, first, last, mask = one
    access = "".join([letter for letter, bit in (("m", 1), ("r", 2), ("w", 4)) if mask & bit])
    if first is None or last is None:
        return all(program.answer(major, minor, access) for minor in (0, 1, 4321, (1 << 20) - 1))
    # The ends first: where the range is missing they tell at once.
    minors = [first, last, *range(first + 1, last)]
    return all(program.answer(major, minor, access) for minor in minors)


def _check_loadable(instructions: list[Instruction]) -> None:
    """ValueError where the kernel has rewritten something that bpf(2) does not take back."""
    second = False
    for n, one in enumerate(instructions):
        if second:
            second = False
            continue
        family = one.code & CLASS
        if family in (JMP, JMP32) and one.code & OPERATION == CALL:
            raise ValueError(f"instruction {n} calls a function of the kernel")
        if family == LD and (one.code != LOAD_64 or one.source):
            raise ValueError(f"instruction {n} refers to a map")
        if family in (LDX, ST, STX) and one.code & 0xE0 != 0x60:
            raise ValueError(f"instruction {n} uses an addressing mode of the kernel's own")
        second = one.code == LOAD_64

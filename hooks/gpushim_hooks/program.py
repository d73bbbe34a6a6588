"""The device programs of a cgroup on cgroup v2, and what they answer.

Every program of a cgroup and of its ancestors must allow (kernel/bpf/cgroup.c).
"""

import posix as os
import time

from gpushim import linux
from gpushim.errors import Blocked
from gpushim_hooks import emulator
from gpushim_hooks.instructions import Unknown, decode
from gpushim_hooks.rule import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question

# Seconds after each try: whoever replaces the programs too is systemd or a runtime, which does it once.
WAITS = (0, 0, 0.001, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3)


class Program:
    """A device program; *instructions* is None where the kernel does not show them, with *why* and a hint."""

    __slots__ = ("code", "gpl", "hint", "id", "instructions", "link", "name", "why")

    def __init__(self, id: int) -> None:
        self.id = id
        self.name = ""
        self.gpl = False
        self.link = False  # whether a link holds it at this cgroup, which only the link's owner can change
        self.code = b""  # the instructions, encoded
        self.instructions: list[Instruction] | None = None
        self.why = ""
        self.hint = ""

    def describe(self) -> str:
        return f"program {self.id} '{self.name}'" if self.name else f"program {self.id}"

    def answer(self, question: "Question") -> "bool | None":
        """Whether the program allows what is asked; None where that cannot be known."""
        if self.instructions is None:
            return None
        try:
            return emulator.allows(self.instructions, question)
        except Unknown:
            return None

    def lacks(self, rules: list[Rule]) -> list[Rule]:
        """Those of *rules* that the program denies in part; Unknown where that cannot be said."""
        if self.instructions is None:
            raise Unknown(self.why)
        return [rule for rule in rules if not emulator.allows_rule(self.instructions, rule)]


def attached(cgroup: int) -> list[Program]:
    """The programs of the cgroup2 directory *cgroup* itself, in the order in which they run."""
    return attached_how(cgroup)[1]


def effective(cgroup: int) -> list[Program]:
    """The programs of *cgroup* and of its ancestors, in the order in which they run."""
    return _programs(cgroup, effective=True)[1]


def ask(programs: list[Program], question: "Question") -> "bool | None":
    """Whether all of *programs* allow what is asked; None where none denies and one cannot be known."""
    if question[:3] == ("c", 0, 0):
        return True  # not asked: include/linux/device_cgroup.h, i_rdev and WHITEOUT_DEV; block/bdev.c asks
    answers = [program.answer(question) for program in programs]
    if False in answers:
        return False
    return None if None in answers else True


def attached_how(cgroup: int) -> tuple[int, list[Program]]:
    """The flags under which programs are attached to *cgroup*, and as attached."""
    flags, programs = _programs(cgroup, effective=False)
    if programs:
        try:
            links = linux.linked_programs(cgroup)
        except PermissionError:
            links = []  # nor can a program be read then, which is what will be said
        for program in programs:
            program.link = program.id in links
    return flags, programs


def _programs(cgroup: int, *, effective: bool) -> tuple[int, list[Program]]:
    for wait in WAITS:
        try:
            flags, ids = linux.device_programs(cgroup, effective=effective)
        except OSError as problem:
            raise Blocked(
                "GS0720",
                f"{problem.filename}: its device programs cannot be listed: {problem.strerror}",
                hint="it takes CAP_SYS_ADMIN outside of any user namespace, and CONFIG_CGROUP_BPF",
            ) from problem
        programs = [_read(id) for id in ids]
        there = [program for program in programs if program is not None]
        if len(there) == len(ids):
            return flags, there
        time.sleep(wait)
    raise restless(cgroup)


def restless(cgroup: int) -> Blocked:
    """What to say where the programs change whenever we look."""
    return Blocked(
        "GS0728",
        f"{path(cgroup)}: its device programs were replaced by something else at each of {len(WAITS)} tries",
        hint="find what does it: bpftool cgroup show, journalctl",
    )


def path(cgroup: int) -> str:
    """The directory of the descriptor *cgroup*."""
    return os.readlink(f"/proc/self/fd/{cgroup}")


def _read(id: int) -> "Program | None":
    """The program *id*, None where it is gone."""
    out = Program(id)
    try:
        fd = linux.open_program(id)
    except FileNotFoundError:
        return None
    except PermissionError as problem:
        out.why = f"the kernel does not hand it out: {problem.strerror}"
        out.hint = "it takes CAP_SYS_ADMIN outside of any user namespace, and an LSM that lets it pass"
        return out
    try:
        _, out.name, out.gpl, size, code = linux.program_info(fd)
    finally:
        os.close(fd)
    if code is not None:
        out.code, out.instructions = code, decode(code)
    elif size:
        out.why = "its constants are blinded, and the kernel does not show them"
        out.hint = "sysctl kernel.kptr_restrict=1 or net.core.bpf_jit_harden=0, and start the container anew"
    else:
        out.why = "the kernel does not show its instructions"
        out.hint = "it takes CAP_SYS_ADMIN outside of any user namespace"
    return out

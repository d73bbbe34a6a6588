"""Making the device programs of a cgroup on cgroup v2 allow more.

Every program must allow, so one more only narrows: each that is there is put behind a prologue, and what
comes of it takes its place in one step.
"""

import errno
import posix as os
import time

from gpushim import linux
from gpushim.errors import Blocked
from gpushim_hooks import emulator
from gpushim_hooks.instructions import Unknown, check_reloadable, decode, encode, prologue, unblind
from gpushim_hooks.program import WAITS, Program, attached_how, effective, path, restless
from gpushim_hooks.rule import LAST_MINOR, Rule, merged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question


class Outcome:
    """What widening came to: ids before and after, and what denies still, each with what can be done."""

    __slots__ = ("obstacles", "replaced")

    def __init__(self, replaced: list[tuple[int, int]], obstacles: list[Blocked]) -> None:
        self.replaced = replaced
        self.obstacles = obstacles


def widen(cgroup: int, rules: list[Rule]) -> Outcome:
    """Make every program of the cgroup2 directory *cgroup* itself allow *rules*, each replaced in one step.

    Where one of them cannot, none is touched. A cgroup without a program is left so. Blocked where the
    kernel refuses, where what it loaded is not what was meant, or where others replace the programs too.
    """
    wanted = merged(rules)
    replaced: list[tuple[int, int]] = []
    loaded: dict[tuple[bytes, bool], int] = {}
    try:
        for wait in WAITS:
            flags, programs = attached_how(cgroup)
            lacking, obstacles = _sort(cgroup, programs, wanted)
            if obstacles or not lacking:
                everything, own = effective(cgroup), [program.id for program in programs]
                if linux.device_programs(cgroup)[1] == own:
                    return Outcome(replaced, obstacles + _ancestors(cgroup, own, everything, wanted))
                continue
            _load_all(cgroup, lacking, loaded)
            # However it goes, what is attached then is looked at once more.
            if not _replace_all(cgroup, flags, [program for program, _ in lacking], loaded, replaced):
                time.sleep(wait)
        raise restless(cgroup)
    finally:
        for fd in loaded.values():
            os.close(fd)


def _sort(
    cgroup: int, programs: list[Program], wanted: list[Rule]
) -> "tuple[list[tuple[Program, list[Rule]]], list[Blocked]]":
    """The programs that lack rules, each with these, and what stands in the way of giving them."""
    lacking: list[tuple[Program, list[Rule]]] = []
    obstacles = []
    for program in programs:
        where = f"{path(cgroup)}: {program.describe()}"
        try:
            lacks = program.lacks(wanted)
        except Unknown as problem:
            obstacles.append(_unreadable(where, program, problem))
            continue
        if not lacks:
            continue
        if program.link:
            obstacles.append(
                Blocked(
                    "GS0723",
                    f"{where} denies {_listed(lacks)}, and a bpf link holds it",
                    hint="only what made the link can change it: bpftool link list",
                )
            )
            continue
        try:
            _source(program)
        except Unknown as problem:
            obstacles.append(
                Blocked(
                    "GS0722",
                    f"{where} denies {_listed(lacks)}, and cannot be loaded again: {problem}",
                    hint="what attached it must allow the devices itself, before or instead of gpushim",
                )
            )
            continue
        lacking.append((program, lacks))
    return lacking, obstacles


def _unreadable(where: str, program: Program, problem: Unknown) -> Blocked:
    return Blocked(
        "GS0721",
        f"{where}: what it allows cannot be known: {problem}",
        hint=program.hint or "what attached it must allow the devices itself, before or instead of gpushim",
    )


def _source(program: Program) -> "list[Instruction]":
    """What the kernel will take again for *program*; Unknown where there is no such thing."""
    assert program.instructions is not None
    try:
        check_reloadable(program.instructions)
    except Unknown:
        plain = unblind(program.instructions)
        check_reloadable(plain)
        return plain
    return program.instructions


def _load_all(
    cgroup: int, lacking: "list[tuple[Program, list[Rule]]]", loaded: dict[tuple[bytes, bool], int]
) -> None:
    """Load a wider program for each of *lacking* that is not in *loaded* yet.

    That takes milliseconds, and who replaces a program mostly does so by one of the same instructions: the
    next try then has nothing to load, and is faster than he is.
    """
    for program, rules in lacking:
        if (program.code, program.gpl) not in loaded:
            loaded[program.code, program.gpl] = _load(cgroup, program, rules)


def _replace_all(
    cgroup: int,
    flags: int,
    programs: list[Program],
    loaded: dict[tuple[bytes, bool], int],
    replaced: list[tuple[int, int]],
) -> bool:
    """Replace *programs*, one after the other; false where others were faster."""
    for program in programs:
        new = loaded[program.code, program.gpl]
        if not _replace(cgroup, flags, program, new):
            return False
        replaced.append((program.id, linux.program_info(new)[0]))
    return True


def _load(cgroup: int, program: Program, rules: list[Rule]) -> int:
    """A descriptor of *program* with *rules* in front, loaded, read back and verified."""
    where = f"{path(cgroup)}: {program.describe()}"
    code = encode(prologue(rules) + _source(program))
    try:
        # Any licence does where no helper is called; the bit says that it was the GPL or one of its kind.
        new = linux.load_program(code, b"GPL" if program.gpl else b"Apache", program.name or "gpushim")
    except OSError as problem:
        raise Blocked(
            "GS0724",
            f"{where}: the kernel does not load it with {_listed(rules)} in front: "
            f"{problem.strerror}: {problem.filename}",
            hint="it takes CAP_SYS_ADMIN outside of any user namespace",
        ) from problem
    try:
        _, _, _, _, shown = linux.program_info(new)
        wrong = _difference(program, decode(shown or code), rules)
    except BaseException:
        os.close(new)
        raise
    if wrong:
        os.close(new)
        raise Blocked(
            "GS0725",
            f"{where}: with {_listed(rules)} in front it answers otherwise on {wrong}; nothing is changed",
            hint="this is a fault of gpushim: please report it with the output of bpftool prog dump xlated",
        )
    return new


def _difference(program: Program, new: "list[Instruction]", rules: list[Rule]) -> str:
    """A question on which *new* is not *program* with *rules* allowed; empty where there is none."""
    for rule in rules:
        if not emulator.allows_rule(new, rule):
            return rule.describe()
    for question in _grid(rules):
        type, major, minor, access = question
        if any(_covers(rule, question) for rule in rules):
            continue
        try:
            after: bool | None = emulator.allows(new, question)
        except Unknown:
            after = None
        if after is not program.answer(question):
            return f"{type} {major}:{minor} {access}"
    return ""


def _grid(rules: list[Rule]) -> "list[Question]":
    """Questions next to each of *rules* in each direction, and on devices of every kind of container."""
    places = [(1, 3), (5, 2), (8, 0), (136, 0)]
    out = [("c", *place, access) for place in places for access in ("rw", "m")]
    out += [("b", *place, "rw") for place in places]
    for rule in rules:
        type, major, first, access = rule.type, rule.major, rule.first, rule.asked()[-1]
        out += [(type, major, first, other) for other in ("r", "w", "rw", "m")]
        out += [("b" if type == "c" else "c", major, first, access)]
        out += [
            (type, major, minor, access) for minor in (first - 1, rule.last + 1) if 0 <= minor <= LAST_MINOR
        ]
        out += [(type, other, first, access) for other in (major - 1, major + 1) if other > 0]
    return list(dict.fromkeys(out))


def _covers(rule: Rule, question: "Question") -> bool:
    type, major, minor, access = question
    same = (type, major) == (rule.type, rule.major) and rule.first <= minor <= rule.last
    return same and access in rule.asked()


def _replace(cgroup: int, flags: int, program: Program, new: int) -> bool:
    """Put the program of the descriptor *new* in the place of *program*; false where that is gone."""
    try:
        if not flags & linux.BPF_MULTI:
            # Without it there is one program, and attaching another replaces that, whatever it is.
            if linux.device_programs(cgroup)[1] != [program.id]:
                return False
            linux.attach_program(cgroup, new, flags)
            return True
        old = linux.open_program(program.id)
        try:
            linux.attach_program(cgroup, new, linux.BPF_MULTI | linux.BPF_REPLACE, old)
        finally:
            os.close(old)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.EBUSY):
            return False
        raise Blocked(
            "GS0726",
            f"{path(cgroup)}: {program.describe()} cannot be replaced: {problem.strerror}",
            hint="it takes CAP_SYS_ADMIN outside of any user namespace, and Linux 5.6",
        ) from problem
    return True


def _ancestors(cgroup: int, own: list[int], everything: list[Program], wanted: list[Rule]) -> list[Blocked]:
    """What those of *everything* deny of *wanted* that are not the *own* ones of *cgroup*."""
    out = []
    for program in everything:
        if program.id in own:
            continue
        where = f"{_owner(cgroup, program.id)}: {program.describe()}"
        try:
            lacks = program.lacks(wanted)
        except Unknown as problem:
            out.append(_unreadable(where, program, problem))
            continue
        if lacks:
            out.append(
                Blocked(
                    "GS0727",
                    f"{where} denies {_listed(lacks)} to every cgroup below, {path(cgroup)} too",
                    hint="allow them there: for a systemd unit, DeviceAllow= of that unit",
                )
            )
    return out


def _owner(cgroup: int, id: int) -> str:
    """The ancestor of *cgroup* that the program *id* is attached to, as far as it is in sight."""
    fd = os.dup(cgroup)
    try:
        while True:
            parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = parent
            try:
                if id in linux.device_programs(fd)[1]:
                    return path(fd)
            except OSError:  # no cgroup any more: we are above the mount
                return "an ancestor that is not mounted here"
    finally:
        os.close(fd)


def _listed(rules: list[Rule]) -> str:
    return ", ".join([rule.describe() for rule in rules])

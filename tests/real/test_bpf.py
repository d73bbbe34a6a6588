"""Device programs on cgroup v2: the emulator and the kernel, and widening of everything that is met."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushim import linux
from gpushim.errors import Blocked
from gpushim_hooks import bpf, emulator
from gpushim_hooks.instructions import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    CALL,
    DIV,
    EXIT,
    JMP,
    JMP32,
    JNE,
    LD_IMM64,
    LDX,
    LSH,
    MEM,
    MOD,
    MOV,
    MUL,
    NEG,
    OR,
    RSH,
    SUB,
    XOR,
    X,
    check_reloadable,
    decode,
    encode,
    prologue,
    unblind,
)
from gpushim_hooks.program import Program, ask, attached, effective
from gpushim_hooks.rule import Rule
from tests.hooks.shapes import ALLOW, DENY, TESTS, generated, systemd
from tests.real.bed import CELLS, Bed, Cell, need
from tests.real.device_cgroup import GRID, Cgroup

MIG = [Rule(511, 1, 1, "r"), Rule(511, 2, 2, "r"), Rule(195, 255, 255, "rw")]
ALLOWED_BY_MIG = {
    ("c", 511, 1, "r"),
    ("c", 511, 2, "r"),
    *[("c", 195, 255, access) for access in ("r", "w", "rw")],
}
ROOT_ONLY = "it takes CAP_SYS_ADMIN outside of any user namespace"


@pytest.fixture(scope="module")
def hierarchy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A mount of cgroup2: its device programs count wherever it is mounted, beside v1 too."""
    need("mount")
    path = tmp_path_factory.mktemp("cgroup2")
    subprocess.run(["mount", "-t", "cgroup2", "none", str(path)], check=True)
    yield path
    # Lazily: what is still busy must not be left where pytest clears up.
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def cgroup(hierarchy: Path, tmp_path: Path) -> Iterator[Cgroup]:
    """A cgroup without a program."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    made = Cgroup(hierarchy / f"gpushim-test-{os.getpid()}", nodes)
    yield made
    made.close()
    for path in sorted(made.path.rglob("*/"), reverse=True):
        _remove(path)
    _remove(made.path)


def _remove(path: Path) -> None:
    """A cgroup is busy for a moment after its last process has gone."""
    deadline = time.monotonic() + 5
    while path.exists():
        assert time.monotonic() < deadline, path
        with contextlib.suppress(OSError):
            path.rmdir()


@contextlib.contextmanager
def sysctl(name: str, value: str) -> Iterator[None]:
    path = Path("/proc/sys") / name
    before = path.read_text()
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)


def emulated(cgroup: Cgroup) -> list[bool | None]:
    programs = effective(cgroup.fd)
    return [ask(programs, question) for question in GRID]


def expected(before: list[bool]) -> list[bool]:
    """The answers of the grid once MIG is allowed."""
    return [answer or question in ALLOWED_BY_MIG for question, answer in zip(GRID, before, strict=True)]


def check_widening(cgroup: Cgroup) -> None:
    """The emulator is right before and after, and nothing but MIG is allowed more than before."""
    before = cgroup.kernel(GRID)
    assert emulated(cgroup) == before

    outcome = bpf.widen(cgroup.fd, MIG)

    after = cgroup.kernel(GRID)
    assert [str(obstacle) for obstacle in outcome.obstacles] == []
    assert after == expected(before)
    assert after != before
    assert emulated(cgroup) == after


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.cgroup == "v2"], ids=str)
def test_a_containers_program(cell: Cell, hierarchy: Path, tmp_path: Path) -> None:
    bed = Bed(cell, tmp_path / "bed")
    container = f"gpushim-test-bpf-{os.getpid()}"
    runtime = [bed.runtime, "--root", str(bed.directory / "run")]
    log = bed.directory / "log"
    create = f'name=$0 bundle=$1; shift; echo | "$@" create --bundle "$bundle" "$name" >{log} 2>&1 || cat {log}; "$@" state "$name"'
    state = bed.enter("sh", "-c", create, container, str(bed.bundle(["/dev/null:r"])), *runtime)
    assert state.code == 0, state.out + state.err
    try:
        pid = next(
            word.strip(", ")
            for line in state.out.splitlines()
            for _, at, word in [line.partition('"pid":')]
            if at
        )
        (path,) = [
            line[3:]
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if line.startswith("0::")
        ]
        nodes = tmp_path / "nodes"
        nodes.mkdir()
        cgroup = Cgroup(hierarchy / path.lstrip("/"), nodes)

        check_widening(cgroup)

        cgroup.close()
    finally:
        bed.enter(*runtime, "delete", "--force", container)


def test_systemds_program(cgroup: Cgroup) -> None:
    first = cgroup.attach(systemd(), "sd_devices")
    assert attached(cgroup.fd)[0].instructions == systemd()

    check_widening(cgroup)

    (program,) = attached(cgroup.fd)
    assert (program.id != first, program.name, program.gpl) == (True, "sd_devices", True)
    assert program.instructions == prologue([Rule(195, 255, 255, "rw"), Rule(511, 1, 2, "r")]) + systemd()


def test_widening_again_changes_nothing(cgroup: Cgroup) -> None:
    cgroup.attach(systemd())
    (replaced,) = bpf.widen(cgroup.fd, MIG).replaced

    again = bpf.widen(cgroup.fd, MIG)

    assert (again.replaced, again.obstacles) == ([], [])
    assert [program.id for program in attached(cgroup.fd)] == [replaced[1]]


def test_a_cgroup_without_a_program_stays_without(cgroup: Cgroup) -> None:
    outcome = bpf.widen(cgroup.fd, MIG)

    assert (outcome.replaced, outcome.obstacles) == ([], [])
    assert attached(cgroup.fd) == []
    assert ask(effective(cgroup.fd), ("c", 511, 1, "r")) is True


def test_the_emulator_and_the_kernel_agree_on_generated_programs(cgroup: Cgroup) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    asked, both = 0, 0

    while asked < 6000:
        code = generated(chance)
        try:
            program = linux.load_program(encode(code), b"GPL", "generated")
        except OSError:
            continue  # the verifier does not take it
        old = linux.device_programs(cgroup.fd)[1]
        if old:
            fd = linux.open_program(old[0])
            linux.attach_program(cgroup.fd, program, linux.BPF_MULTI | linux.BPF_REPLACE, fd)
            os.close(fd)
        else:
            linux.attach_program(cgroup.fd, program, linux.BPF_MULTI)
        os.close(program)

        truth, ours = cgroup.kernel(GRID), emulated(cgroup)

        assert ours == truth, f"seed {seed}: {code}"
        asked += len(GRID)
        both += len(set(truth)) == 2
    assert both > 5, "no program told anything from anything"


OPERANDS = [
    (7, 3),
    (5, 0),
    (-1, 5),
    (1 << 31, 31),
    (-1 << 63, 63),
    (-1 << 63, 65),
    (0xDEADBEEF_CAFEBABE, 0x1_23456789),
    (3, -2),
]


def constant(register: int, value: int) -> list[tuple[int, int, int, int, int]]:
    """Put *value* in *register* in a way that the verifier cannot foresee: r9 is a zero that it does not know."""
    low, high = ((value >> shift & 0xFFFFFFFF ^ 1 << 31) - (1 << 31) for shift in (0, 32))
    return [(LD_IMM64, register, 0, 0, low), (0, 0, 0, 0, high), (ALU64 | ADD | X, register, 9, 0, 0)]


# r9 = major - 511, r8 = minor; and at the end bit r8 of r6 is the answer.
START = [(LDX | MEM, 9, 1, 4, 0), (ALU64 | SUB, 9, 0, 0, 511), (LDX | MEM, 8, 1, 8, 0)]
END = [(ALU64 | MOV | X, 0, 6, 0, 0), (ALU64 | RSH | X, 0, 8, 0, 0), (ALU64 | AND, 0, 0, 0, 1), ALLOW[1]]


def check_bits(cgroup: Cgroup, code: list[tuple[int, int, int, int, int]]) -> None:
    id = cgroup.attach(code)
    questions = [("c", 511, bit, "r") for bit in range(64)]
    (program,) = attached(cgroup.fd)
    assert [program.answer(question) for question in questions] == cgroup.kernel(questions)
    cgroup.detach(id)


@pytest.mark.parametrize("operands", OPERANDS, ids=str)
@pytest.mark.parametrize("kind", [ALU, ALU64], ids=["32", "64"])
def test_every_operation_comes_to_what_the_kernel_makes_of_it(
    cgroup: Cgroup, kind: int, operands: tuple[int, int]
) -> None:
    left, right = operands
    for operation in (ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, MOD, XOR, MOV, ARSH):
        work = [*constant(6, left), *constant(7, right), (kind | operation | X, 6, 7, 0, 0)]
        check_bits(cgroup, [*START, *work, *END])
    check_bits(cgroup, [*START, *constant(6, left), (kind | NEG, 6, 0, 0, 0), *END])


@pytest.mark.parametrize("operands", [*OPERANDS, (-1, -1), (1 << 32, 0)], ids=str)
@pytest.mark.parametrize("kind", [JMP, JMP32], ids=["64", "32"])
def test_every_test_goes_where_the_kernel_goes(cgroup: Cgroup, kind: int, operands: tuple[int, int]) -> None:
    """A bit of the result for each test."""
    left, right = operands
    code = [*START, *constant(5, left), *constant(7, right), (ALU64 | MOV, 6, 0, 0, 0)]
    for bit, test in enumerate(TESTS):
        # The bit is set where the test fails.
        code += [(kind | test | X, 5, 7, 1, 0), (ALU64 | OR, 6, 0, 0, 1 << bit)]
        immediate = max(min(right, (1 << 31) - 1), -1 << 31)
        code += [(kind | test, 5, 0, 1, immediate), (ALU64 | OR, 6, 0, 0, 1 << bit + len(TESTS))]

    check_bits(cgroup, [*code, *END])


def test_every_minor_of_eight_gpus_in_one_load(cgroup: Cgroup) -> None:
    cgroup.attach(systemd())
    # With a gap after each GPU, so that no two ranges are one.
    minors = [3 + 136 * gpu + at for gpu in range(8) for at in range(135)]

    outcome = bpf.widen(cgroup.fd, [Rule(511, minor, minor, "r") for minor in minors])

    assert (len(outcome.replaced), outcome.obstacles) == (1, [])
    (program,) = attached(cgroup.fd)
    assert program.instructions is not None
    assert len(program.instructions) == 6 + 8 * 7 + len(systemd())
    questions = [("c", 511, minor, access) for minor in range(1100) for access in ("r", "w")]
    truth = cgroup.kernel(questions)
    assert truth == [access == "r" and minor in minors for _, _, minor, access in questions]
    assert [program.answer(question) for question in questions] == truth


def test_each_of_several_programs_is_widened_in_its_place(cgroup: Cgroup) -> None:
    cgroup.attach(systemd(), "first")
    cgroup.attach(systemd([("c", 1, None, "rw"), ("c", 511, None, "rwm")]), "second")
    cgroup.attach(ALLOW, "third")

    check_widening(cgroup)

    assert [program.name for program in attached(cgroup.fd)] == ["first", "second", "third"]


@pytest.mark.parametrize("flags", [0, linux.BPF_OVERRIDE], ids=["none", "override"])
def test_a_program_that_stands_alone_is_replaced(cgroup: Cgroup, flags: int) -> None:
    cgroup.attach(systemd(), flags=flags)

    check_widening(cgroup)

    assert linux.device_programs(cgroup.fd)[0] == flags


def test_a_program_that_the_kernel_blinded_is_loaded_as_it_was(cgroup: Cgroup) -> None:
    with sysctl("net/core/bpf_jit_harden", "2"):
        cgroup.attach(systemd())
    (blinded,) = attached(cgroup.fd)
    assert blinded.instructions is not None
    assert len(blinded.instructions) > len(systemd())

    check_widening(cgroup)

    (program,) = attached(cgroup.fd)
    assert program.instructions == prologue([Rule(195, 255, 255, "rw"), Rule(511, 1, 2, "r")]) + systemd()


def test_generated_programs_are_unblinded_to_what_they_were(cgroup: Cgroup) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    changed = 0

    with sysctl("net/core/bpf_jit_harden", "2"):
        for _ in range(200):
            code = encode(generated(chance))
            try:
                hidden = linux.load_program(code, b"GPL", "generated")
            except OSError:
                continue
            shown = linux.program_info(hidden)[4]
            os.close(hidden)
            assert shown is not None
            plain = unblind(decode(shown))
            check_reloadable(plain)
            os.close(linux.load_program(encode(plain), b"GPL", "generated"))
            changed += encode(plain) != shown
            for question in random.Random(seed).sample(GRID, 20):
                answer = emulator.allows(decode(code), question)
                assert emulator.allows(plain, question) == answer, f"seed {seed}: {decode(code)}"
                assert emulator.allows(decode(shown), question) == answer, f"seed {seed}: {decode(code)}"
    assert changed > 20


def test_under_hardening_what_was_widened_can_be_widened_again(cgroup: Cgroup) -> None:
    with sysctl("net/core/bpf_jit_harden", "2"):
        cgroup.attach(systemd())
        bpf.widen(cgroup.fd, [Rule(511, 1, 2, "r")])

        check_widening(cgroup)


def test_a_program_that_the_kernel_keeps_to_itself(cgroup: Cgroup) -> None:
    with sysctl("net/core/bpf_jit_harden", "2"), sysctl("kernel/kptr_restrict", "2"):
        id = cgroup.attach(systemd(), "hidden")

        outcome = bpf.widen(cgroup.fd, MIG)

        assert ask(effective(cgroup.fd), ("c", 511, 1, "r")) is None
    assert [str(obstacle) for obstacle in outcome.obstacles] == [
        f"GS0721: {cgroup.path}: program {id} 'hidden': what it allows cannot be known: its constants are "
        "blinded, and the kernel does not show them\n"
        "hint: sysctl kernel.kptr_restrict=1 or net.core.bpf_jit_harden=0, and start the container anew"
    ]
    assert linux.device_programs(cgroup.fd)[1] == [id]


OUTSIDE = "what attached it must allow the devices itself, before or instead of gpushim"


def test_a_program_that_calls_a_helper_is_not_understood(cgroup: Cgroup) -> None:
    id = cgroup.attach([(JMP | CALL, 0, 0, 0, 7), *DENY], "helper")
    other = cgroup.attach(systemd())

    outcome = bpf.widen(cgroup.fd, MIG)

    assert outcome.replaced == []
    assert [str(obstacle) for obstacle in outcome.obstacles] == [
        f"GS0721: {cgroup.path}: program {id} 'helper': what it allows cannot be known: instruction 0: it "
        f"calls a function\nhint: {OUTSIDE}"
    ]
    assert linux.device_programs(cgroup.fd)[1] == [id, other], "one alone would be half done"


def test_a_program_that_calls_a_helper_for_others_only_cannot_be_loaded_again(cgroup: Cgroup) -> None:
    code = [(LDX | MEM, 2, 1, 4, 0), (JMP | JNE, 2, 0, 2, 511), *DENY, (JMP | CALL, 0, 0, 0, 7), *DENY]
    id = cgroup.attach(code, "helper")

    outcome = bpf.widen(cgroup.fd, [Rule(511, 1, 2, "r")])

    assert [str(obstacle) for obstacle in outcome.obstacles] == [
        f"GS0722: {cgroup.path}: program {id} 'helper' denies c 511:1-2 r, and cannot be loaded again: "
        f"instruction 4: it calls a function\nhint: {OUTSIDE}"
    ]
    assert linux.device_programs(cgroup.fd)[1] == [id]


def test_a_program_that_a_link_holds_is_its_owners(cgroup: Cgroup) -> None:
    cgroup.attach(systemd(), "plain")
    link = cgroup.link(systemd())
    plain, linked = attached(cgroup.fd)
    assert (plain.link, linked.link) == (False, True)

    outcome = bpf.widen(cgroup.fd, MIG)

    os.close(link)
    assert outcome.replaced == []
    assert [str(obstacle) for obstacle in outcome.obstacles] == [
        f"GS0723: {cgroup.path}: program {linked.id} 'linked' denies c 195:255 rw, c 511:1-2 r, and a bpf link "
        "holds it\nhint: only what made the link can change it: bpftool link list"
    ]
    assert linux.device_programs(cgroup.fd)[1] == [plain.id]


def test_a_link_that_allows_is_in_nobodys_way(cgroup: Cgroup) -> None:
    link = cgroup.link(ALLOW)
    cgroup.attach(systemd())

    check_widening(cgroup)

    os.close(link)


def test_what_an_ancestor_denies_stays_denied_and_is_named(cgroup: Cgroup) -> None:
    id = cgroup.attach(systemd(), "above")
    child = cgroup.child("child")
    child.attach(systemd(), "below")

    outcome = bpf.widen(child.fd, MIG)

    assert len(outcome.replaced) == 1
    assert [str(obstacle) for obstacle in outcome.obstacles] == [
        f"GS0727: {cgroup.path}: program {id} 'above' denies c 195:255 rw, c 511:1-2 r to every cgroup below, "
        f"{child.path} too\nhint: allow them there: for a systemd unit, DeviceAllow= of that unit"
    ]
    assert child.kernel(GRID) == emulated(child)
    assert ask(effective(child.fd), ("c", 511, 1, "r")) is False


WIDEN = """
import os, sys
from gpushim.errors import Blocked
from gpushim_hooks import bpf
from gpushim_hooks.rule import Rule
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
try:
    print(*bpf.widen(fd, [Rule(511, 1, 2, "r")]).obstacles)
except Blocked as problem:
    print(problem)
"""


def widen_under(cgroup: Cgroup, *command: str) -> str:
    argv = [*command, sys.executable, "-c", WIDEN, str(cgroup.path)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_without_sys_admin_no_program_can_be_read(cgroup: Cgroup) -> None:
    need("setpriv")
    id = cgroup.attach(systemd())

    said = widen_under(cgroup, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")

    assert said == (
        f"GS0721: {cgroup.path}: program {id}: what it allows cannot be known: the kernel does not hand it out: "
        f"Operation not permitted\nhint: {ROOT_ONLY}, and an LSM that lets it pass\n"
    )


def test_in_a_user_namespace_no_program_can_be_listed(cgroup: Cgroup) -> None:
    need("unshare")
    cgroup.attach(systemd())

    said = widen_under(cgroup, "unshare", "-Ur")

    assert said == (
        f"GS0720: {cgroup.path}: its device programs cannot be listed: Operation not permitted\n"
        f"hint: {ROOT_ONLY}, and CONFIG_CGROUP_BPF\n"
    )


def test_a_directory_that_is_no_cgroup(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)

    with pytest.raises(Blocked) as raised:
        bpf.widen(fd, MIG)

    os.close(fd)
    assert str(raised.value) == (
        f"GS0720: {tmp_path}: its device programs cannot be listed: Bad file descriptor\n"
        f"hint: {ROOT_ONLY}, and CONFIG_CGROUP_BPF"
    )


REPLACER = """
import os, sys, time
from gpushim import linux
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
code, pause = bytes.fromhex(sys.argv[2]), float(sys.argv[3])
print("started", flush=True)
while True:
    new = linux.load_program(code, b"GPL", "foreign")
    try:
        old = linux.open_program(linux.device_programs(fd)[1][0])
        try:
            linux.attach_program(fd, new, linux.BPF_MULTI | linux.BPF_REPLACE, old)
        finally:
            os.close(old)
    except OSError:
        pass  # we were faster
    os.close(new)
    time.sleep(pause)
"""


@contextlib.contextmanager
def replacer(cgroup: Cgroup, pause: float) -> Iterator[None]:
    """Somebody else who replaces the program by systemd's all the time."""
    argv = [sys.executable, "-c", REPLACER, str(cgroup.path), encode(systemd()).hex(), str(pause)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_somebody_else_who_replaces_the_program_costs_tries(cgroup: Cgroup) -> None:
    cgroup.attach(systemd())
    descriptors = os.listdir("/proc/self/fd")
    replaced = 0

    with replacer(cgroup, 0.01):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            outcome = bpf.widen(cgroup.fd, MIG)
            replaced += len(outcome.replaced)
            assert outcome.obstacles == []
            assert len(linux.device_programs(cgroup.fd)[1]) == 1

    assert replaced > 10, "nobody was in our way"
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


@pytest.mark.parametrize("flags", [0, linux.BPF_OVERRIDE], ids=["none", "override"])
def test_a_program_that_stands_alone_and_was_just_replaced_is_not_lost(
    cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    cgroup.attach(systemd(), "old", flags=flags)
    others = iter([systemd([("c", 10, 200, "rwm")])])
    load_all = bpf._load_all

    def slowly(cgroup_fd: int, lacking: Any, loaded: Any) -> None:
        load_all(cgroup_fd, lacking, loaded)
        for other in others:
            cgroup.attach(other, "new", flags=flags)

    monkeypatch.setattr(bpf, "_load_all", slowly)

    outcome = bpf.widen(cgroup.fd, MIG)

    assert (len(outcome.replaced), outcome.obstacles) == (1, [])
    (program,) = attached(cgroup.fd)
    assert program.name == "new"
    asked = [("c", 10, 200, "rw"), ("c", 1, 3, "rw"), ("c", 511, 1, "r")]
    assert [program.answer(question) for question in asked] == [True, False, True] == cgroup.kernel(asked)


def test_a_program_that_never_holds_still_is_said(cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup.attach(systemd())

    def faster(*_: object) -> bool:
        return False

    monkeypatch.setattr(bpf, "_replace", faster)

    with pytest.raises(Blocked) as raised:
        bpf.widen(cgroup.fd, MIG)

    assert str(raised.value) == (
        f"GS0728: {cgroup.path}: its device programs were replaced by something else at each of 16 tries\n"
        "hint: find what does it: bpftool cgroup show, journalctl"
    )


def test_what_the_verifier_says_is_said(cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    id = cgroup.attach(systemd())
    monkeypatch.setattr(bpf, "_source", lambda program: [(JMP | EXIT, 0, 0, 0, 0)])

    with pytest.raises(Blocked) as raised:
        bpf.widen(cgroup.fd, [Rule(511, 1, 2, "r")])

    assert str(raised.value) == (
        f"GS0724: {cgroup.path}: program {id} 'test': the kernel does not load it with c 511:1-2 r in front: "
        f"Permission denied: R0 !read_ok\nhint: {ROOT_ONLY}"
    )
    assert linux.device_programs(cgroup.fd)[1] == [id]


@pytest.mark.parametrize(
    ("source", "question"),
    [
        pytest.param(ALLOW, "c 8:0 rw", id="more"),
        pytest.param(DENY, "c 1:3 rw", id="less"),
        pytest.param(prologue([Rule(195, 255, 255, "m")]) + systemd(), "c 195:255 m", id="access"),
        pytest.param(prologue([Rule(195, 254, 255, "rw")]) + systemd(), "c 195:254 rw", id="below"),
        pytest.param(prologue([Rule(195, 255, 256, "rw")]) + systemd(), "c 195:256 rw", id="above"),
        pytest.param(prologue([Rule(194, 255, 255, "rw")]) + systemd(), "c 194:255 rw", id="major"),
        pytest.param(prologue([Rule(195, 255, 255, "rw", "b")]) + systemd(), "b 195:255 rw", id="block"),
    ],
)
def test_a_program_that_comes_out_different_is_not_attached(
    cgroup: Cgroup,
    monkeypatch: pytest.MonkeyPatch,
    source: list[tuple[int, int, int, int, int]],
    question: str,
) -> None:
    id = cgroup.attach(systemd())
    monkeypatch.setattr(bpf, "_source", lambda program: source)

    with pytest.raises(Blocked) as raised:
        bpf.widen(cgroup.fd, [Rule(195, 255, 255, "rw")])

    assert str(raised.value) == (
        f"GS0725: {cgroup.path}: program {id} 'test': with c 195:255 rw in front it answers otherwise on "
        f"{question}; nothing is changed\n"
        "hint: this is a fault of gpushim: please report it with the output of bpftool prog dump xlated"
    )
    assert linux.device_programs(cgroup.fd)[1] == [id]


def test_a_replacement_that_the_kernel_refuses(cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel before 5.6 does, which does not know the flag."""
    id = cgroup.attach(systemd())
    monkeypatch.setattr(linux, "BPF_REPLACE", 1 << 30)

    with pytest.raises(Blocked) as raised:
        bpf.widen(cgroup.fd, MIG)

    assert str(raised.value) == (
        f"GS0726: {cgroup.path}: program {id} 'test' cannot be replaced: Invalid argument\n"
        f"hint: {ROOT_ONLY}, and Linux 5.6"
    )
    assert linux.device_programs(cgroup.fd)[1] == [id]


OPENER = """
import os, sys
cgroup, allowed, denied = sys.argv[1:]
with open(cgroup + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
print("started", flush=True)
opens = wrong = 0
os.set_blocking(0, False)
while True:
    for path, right in ((allowed, 6), (denied, 1)):
        try:
            os.close(os.open(path, os.O_RDWR))
            wrong += 1
        except OSError as problem:
            wrong += problem.errno != right
        opens += 1
    if opens % 512 == 0:
        try:
            if os.read(0, 1) == b"":
                break
        except BlockingIOError:
            pass
print(opens, wrong)
"""


def test_a_task_inside_never_sees_a_wrong_answer(cgroup: Cgroup) -> None:
    """Of 3000 swaps, half ours and half those of the one who puts his program back."""
    base = systemd([("c", 195, 0, "rw"), ("c", 1, None, "rwm")])
    cgroup.attach(base)
    cgroup.make_nodes([("c", 195, 0, "rw"), ("c", 195, 1, "rw")])
    nodes = [str(cgroup.nodes / name) for name in ("c195.0", "c195.1")]
    argv = [sys.executable, "-I", "-S", "-c", OPENER, str(cgroup.path), *nodes]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    back = linux.load_program(encode(base), b"GPL", "test")

    for _ in range(1500):
        ((_, new),) = bpf.widen(cgroup.fd, MIG).replaced
        fd = linux.open_program(new)
        linux.attach_program(cgroup.fd, back, linux.BPF_MULTI | linux.BPF_REPLACE, fd)
        os.close(fd)

    os.close(back)
    out, _ = process.communicate()
    opens, wrong = map(int, out.split())
    assert wrong == 0
    assert opens > 10_000


def test_a_hundred_programs_are_all_listed(cgroup: Cgroup) -> None:
    child = cgroup
    ids = []
    for level in range(3):
        ids += [child.attach(ALLOW) for _ in range(30)]
        child = child.child(f"level{level}")

    assert len(effective(child.fd)) == 90
    assert [program.id for program in attached(cgroup.fd)] == ids[:30]
    assert all(isinstance(program, Program) for program in effective(cgroup.fd))

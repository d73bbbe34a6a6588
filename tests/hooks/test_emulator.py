"""gpushim_hooks.emulator: what needs no kernel; tests/real/test_bpf.py asks one."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushim_hooks.emulator import WAYS, allows, allows_rule, answer
from gpushim_hooks.instructions import (
    ADD,
    ALU,
    ALU64,
    AND,
    CALL,
    DIV,
    END,
    EXIT,
    JA,
    JEQ,
    JGT,
    JMP,
    JMP32,
    JNE,
    JSGT,
    LD,
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
    ST,
    STX,
    SUB,
    Unknown,
    X,
    prologue,
)
from gpushim_hooks.rule import LAST_MINOR, Rule
from tests.hooks.shapes import ALLOW, DENY, generated, systemd

if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question

NULL: Question = ("c", 1, 3, "rw")
LEAVE: Instruction = (JMP | EXIT, 0, 0, 0, 0)
ZERO: Instruction = (ALU64 | MOV, 0, 0, 0, 0)
WORD, HALF, BYTE, DOUBLE = 0x00, 0x08, 0x10, 0x18


@pytest.mark.parametrize(
    ("question", "allowed"),
    [
        pytest.param(("c", 1, 3, "rw"), True, id="null"),
        pytest.param(("c", 1, 3, "m"), True, id="null-mknod"),
        pytest.param(("c", 1, 4, "r"), False, id="another-minor"),
        pytest.param(("b", 1, 3, "r"), False, id="block"),
        pytest.param(("c", 136, 4711, "rw"), True, id="any-minor"),
        pytest.param(("c", 136, 0, "m"), False, id="not-mknod"),
        pytest.param(("b", 8, 16, "r"), True, id="disk"),
        pytest.param(("b", 8, 16, "rw"), False, id="disk-write"),
        pytest.param(("c", 511, 1, "r"), False, id="cap"),
    ],
)
def test_systemds_program(question: Question, allowed: bool) -> None:
    assert allows(systemd(), question) is allowed


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param([], "instruction 0: there is none", id="empty"),
        pytest.param([ZERO], "instruction 1: there is none", id="falls-off"),
        pytest.param([(JMP | JA, 0, 0, -2, 0)], "instruction -1: there is none", id="jumps-before"),
        pytest.param([LEAVE], "instruction 0: it uses r0, which holds no number", id="nothing-returned"),
        pytest.param(
            [(ALU64 | MOV | X, 0, 10, 0, 0), LEAVE],
            "instruction 1: it uses r0, which holds no number",
            id="pointer-returned",
        ),
        pytest.param(
            [(ALU64 | ADD, 6, 0, 0, 1)], "instruction 0: it uses r6, which holds no number", id="unwritten"
        ),
        pytest.param(
            [(JMP | JEQ, 6, 0, 0, 1)], "instruction 0: it uses r6, which holds no number", id="unwritten-test"
        ),
        pytest.param(
            [(JMP | JEQ, 1, 0, 0, 0)], "instruction 0: it uses r1, which holds no number", id="pointer-test"
        ),
        pytest.param([(JMP | CALL, 0, 0, 0, 5)], "instruction 0: it calls a function", id="helper"),
        pytest.param([(JMP32 | CALL, 0, 0, 0, 5)], "instruction 0: it calls a function", id="call32"),
        pytest.param(
            [(LD_IMM64, 1, 1, 0, 5), (0, 0, 0, 0, 0)], "instruction 0: code 0x18 with source 1", id="map"
        ),
        pytest.param(
            [(LD_IMM64, 1, 0, 0, 5)], "instruction 0: code 0x18 with source 0", id="half-a-constant"
        ),
        pytest.param(
            [(JMP | JA, 0, 0, 1, 0), (LD_IMM64, 0, 0, 0, 5), (0, 0, 0, 0, 0)],
            "instruction 2: code 0x0 with source 0",
            id="into-a-constant",
        ),
        pytest.param([(LD | 0x20, 0, 0, 0, 0)], "instruction 0: code 0x20 with source 0", id="packet"),
        pytest.param([ZERO, (ALU | END, 0, 0, 0, 16)], "instruction 1: operation 0xd0", id="swap"),
        pytest.param([ZERO, (ALU64 | END, 0, 0, 0, 16)], "instruction 1: operation 0xd0", id="swap64"),
        pytest.param(
            [ZERO, (ALU64 | DIV, 0, 0, 1, 3)], "instruction 1: it is a signed division or move", id="sdiv"
        ),
        pytest.param(
            [ZERO, (ALU | MOD, 0, 0, 1, 3)], "instruction 1: it is a signed division or move", id="smod"
        ),
        pytest.param(
            [ZERO, (ALU64 | MOV | X, 0, 0, 8, 0)],
            "instruction 1: it is a signed division or move",
            id="movsx",
        ),
        pytest.param(
            [ZERO, (ALU64 | NEG | X, 0, 0, 0, 0)], "instruction 1: operation 0x80", id="neg-of-a-register"
        ),
        pytest.param([ZERO, (ALU64 | 0xE0, 0, 0, 0, 0)], "instruction 1: operation 0xe0", id="no-operation"),
        pytest.param([ZERO, (JMP | 0xE0, 0, 0, 0, 0)], "instruction 1: jump 0xe0", id="may-goto"),
        pytest.param([(LDX | 0x80, 0, 1, 0, 0)], "instruction 0: access mode 0x80", id="sign-extending-load"),
        pytest.param([(STX | 0xC0, 10, 1, -8, 0)], "instruction 0: access mode 0xc0", id="atomic"),
        pytest.param(
            [(LDX | MEM, 0, 1, 12, 0)], "instruction 0: it reads outside of the context", id="behind"
        ),
        pytest.param(
            [(LDX | MEM, 0, 1, -4, 0)], "instruction 0: it reads outside of the context", id="before"
        ),
        pytest.param(
            [(LDX | MEM | DOUBLE, 0, 1, 8, 0)],
            "instruction 0: it reads outside of the context",
            id="half-behind",
        ),
        pytest.param(
            [ZERO, (LDX | MEM, 0, 0, 0, 0)], "instruction 1: it uses r0 as an address", id="no-address"
        ),
        pytest.param(
            [(LDX | MEM, 0, 10, -8, 0)], "instruction 0: it reads what was never stored so", id="unstored"
        ),
        pytest.param(
            [(ST | MEM | DOUBLE, 10, 0, -8, 1), (LDX | MEM, 0, 10, -8, 0)],
            "instruction 1: it reads what was never stored so",
            id="other-size",
        ),
        pytest.param(
            [(ST | MEM | DOUBLE, 10, 0, -8, 1), (ST | MEM, 10, 0, -4, 1), (LDX | MEM | DOUBLE, 0, 10, -8, 0)],
            "instruction 2: it reads what was never stored so",
            id="half-overwritten",
        ),
        pytest.param(
            [(ST | MEM, 1, 0, 0, 1)], "instruction 0: it writes outside of the stack", id="context-write"
        ),
        pytest.param(
            [(ST | MEM, 10, 0, 0, 1)], "instruction 0: it writes outside of the stack", id="above-stack"
        ),
        pytest.param(
            [(ST | MEM, 10, 0, -516, 1)], "instruction 0: it writes outside of the stack", id="below-stack"
        ),
        pytest.param(
            [(STX | MEM | DOUBLE, 10, 6, -8, 0)],
            "instruction 0: it stores r6, of which the value is not known",
            id="spill",
        ),
        pytest.param(
            [(STX | MEM, 10, 1, -8, 0)],
            "instruction 0: it stores r1, of which the value is not known",
            id="half-a-pointer",
        ),
        pytest.param(
            [(ALU64 | OR, 1, 0, 0, 1)],
            "instruction 0: it uses r1, which holds no number",
            id="pointer-arithmetic",
        ),
        pytest.param(
            [(ALU | ADD, 1, 0, 0, 4)], "instruction 0: it uses r1, which holds no number", id="pointer32"
        ),
        pytest.param(
            [(ALU64 | SUB | X, 1, 10, 0, 0)],
            "instruction 0: it uses r10, which holds no number",
            id="difference",
        ),
        pytest.param(
            [(ALU64 | MOV, 10, 0, 0, 4)], "instruction 0: it writes the frame pointer", id="frame-pointer"
        ),
        pytest.param([(JMP | JA, 0, 0, -1, 0)], "it takes more than 100000 steps", id="for-ever"),
    ],
)
def test_what_is_not_known_exactly_is_not_answered(code: list[Instruction], why: str) -> None:
    with pytest.raises(Unknown) as raised:
        allows(code, NULL)

    assert str(raised.value) == why


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [*range(256), LD_IMM64, LDX | MEM, JMP | JA, JMP32 | JA, ALU64 | MOV | X, ALU64 | LSH]
            ),
            st.integers(0, 15),
            st.integers(0, 15),
            st.integers(-9, 9),
            st.sampled_from([0, 1, -1, 12, 1 << 20, (1 << 31) - 1, -1 << 31]),
        ),
        max_size=20,
    )
)
@settings(max_examples=500)
def test_any_instructions_end_in_an_answer_or_unknown(code: list[Instruction]) -> None:
    try:
        answer(code, NULL)
    except Unknown:
        pass


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([(ALU64 | MUL | X, 2, 2, 0, 0)] * 50, id="arithmetic"),
        pytest.param([(JMP | JNE, 2, 0, 0, 0)] * 30_000, id="tests"),
        pytest.param([(STX | MEM | DOUBLE, 10, 2, -8 * at, 0) for at in range(1, 65)], id="stores"),
        pytest.param([(LD_IMM64, 2, 0, 0, -1), (0, 0, 0, 0, -1)] * 50, id="constants"),
    ],
)
def test_a_hostile_program_ends_in_seconds(body: list[Instruction]) -> None:
    code = [(ALU64 | MOV, 2, 0, 0, 3), *body, (JMP | JA, 0, 0, -len(body) - 1, 0)]
    started = time.monotonic()

    with pytest.raises(Unknown) as raised:
        allows(code, NULL)

    assert str(raised.value) == "it takes more than 100000 steps"
    assert time.monotonic() - started < 20  # and about one where nothing else runs


@pytest.mark.parametrize(
    ("load", "value"),
    [
        pytest.param((WORD, 0), 6 << 16 | 2, id="access-and-type"),
        pytest.param((HALF, 0), 2, id="type"),
        pytest.param((HALF, 2), 6, id="access"),
        pytest.param((BYTE, 2), 6, id="access-byte"),
        pytest.param((WORD, 4), 1, id="major"),
        pytest.param((WORD, 8), 3, id="minor"),
        pytest.param((DOUBLE, 4), 3 << 32 | 1, id="major-and-minor"),
    ],
)
def test_the_context_holds_the_question(load: tuple[int, int], value: int) -> None:
    size, offset = load
    code: list[Instruction] = [
        (LDX | MEM | size, 2, 1, offset, 0),
        (LD_IMM64, 3, 0, 0, value & 0xFFFFFFFF),
        (0, 0, 0, 0, value >> 32),
        ZERO,
        (JMP | JEQ | X, 2, 3, 1, 0),
        LEAVE,
        *ALLOW,
    ]

    assert allows(code, NULL) is True
    assert allows(code, ("b", 2, 4, "r")) is False


def test_a_pointer_is_kept_on_the_stack_and_moved() -> None:
    code: list[Instruction] = [
        (STX | MEM | DOUBLE, 10, 1, -8, 0),
        (ALU64 | MOV, 1, 0, 0, 0),
        (LDX | MEM | DOUBLE, 6, 10, -8, 0),
        (ALU64 | ADD, 6, 0, 0, 12),
        (ALU64 | MOV, 7, 0, 0, 4),
        (ALU64 | SUB | X, 6, 7, 0, 0),
        (LDX | MEM, 0, 6, 0, 0),
        LEAVE,
    ]

    assert [allows(code, ("c", 1, minor, "r")) for minor in (0, 3)] == [False, True]


def test_only_the_low_half_of_what_is_returned_counts() -> None:
    code: list[Instruction] = [(LD_IMM64, 0, 0, 0, 0), (0, 0, 0, 0, 1), LEAVE]

    assert allows(code, NULL) is False


@pytest.mark.parametrize(
    ("minor", "expected"),
    [(0, (False, 0, 2)), (3, (True, 3, 137)), (137, (True, 3, 137)), (138, (False, 138, LAST_MINOR))],
)
def test_an_answer_says_for_which_minors_it_holds(minor: int, expected: tuple[bool, int, int]) -> None:
    code = prologue([Rule(511, 3, 137, "r")]) + DENY

    assert answer(code, ("c", 511, minor, "r")) == expected


@given(st.randoms(use_true_random=False), st.integers(0, LAST_MINOR), st.lists(st.integers(0, LAST_MINOR)))
def test_all_minors_of_a_way_get_its_answer(chance: random.Random, minor: int, others: list[int]) -> None:
    code = generated(chance)
    minor = chance.choice([minor, minor & 7, minor & 255])

    allowed, first, last = answer(code, ("c", 511, minor, "r"))

    assert first <= minor <= last
    for other in [first, last, *[other for other in others if first <= other <= last]]:
        assert answer(code, ("c", 511, other, "r")) == (allowed, first, last)


@given(st.randoms(use_true_random=False), st.integers(0, 300), st.integers(0, 40))
def test_a_rule_is_allowed_where_each_of_its_minors_is(chance: random.Random, first: int, more: int) -> None:
    code = generated(chance)

    whole = allows_rule(code, Rule(511, first, first + more, "rw"))

    minors = range(first, first + more + 1)
    assert whole is all(
        allows(code, ("c", 511, minor, access)) for minor in minors for access in ("r", "w", "rw")
    )


def test_a_rule_with_one_minor_denied_in_its_middle() -> None:
    code: list[Instruction] = [
        (LDX | MEM, 5, 1, 8, 0),
        ZERO,
        (JMP | JEQ, 5, 0, 1, 70),
        (ALU64 | MOV, 0, 0, 0, 1),
        LEAVE,
    ]

    assert allows_rule(code, Rule(511, 3, 69, "r")) is True
    assert allows_rule(code, Rule(511, 3, 137, "r")) is False
    assert allows_rule(code, Rule(511, 71, LAST_MINOR, "r")) is True


@pytest.mark.parametrize(
    "change",
    [
        pytest.param([(ALU64 | AND, 5, 0, 0, -1)], id="mask"),
        pytest.param([(ALU64 | LSH, 5, 0, 0, 32), (ALU64 | RSH, 5, 0, 0, 32)], id="shifts"),
        pytest.param([(STX | MEM, 10, 5, -4, 0), (LDX | MEM, 5, 10, -4, 0)], id="stack"),
        pytest.param([(ALU64 | MOV, 6, 0, 0, -1), (JMP | JSGT, 5, 0, 0, -1)], id="signed-test"),
    ],
)
def test_a_minor_that_is_calculated_with_is_asked_one_by_one(change: list[Instruction]) -> None:
    code = [
        (LDX | MEM, 5, 1, 8, 0),
        *change,
        ZERO,
        (JMP | JGT, 5, 0, 1, 99),
        (ALU64 | MOV, 0, 0, 0, 1),
        LEAVE,
    ]

    assert allows_rule(code, Rule(511, 0, 99, "r")) is True
    assert allows_rule(code, Rule(511, 0, 100, "r")) is False
    with pytest.raises(Unknown) as raised:
        allows_rule([*code[:-3], *ALLOW], Rule(511, 0, LAST_MINOR, "r"))
    assert str(raised.value) == f"it tells more than {WAYS} minors of major 511 from each other"

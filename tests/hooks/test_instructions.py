"""gpushim_hooks.instructions."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim_hooks import emulator, instructions
from gpushim_hooks.instructions import (
    ADD,
    ALU,
    ALU64,
    AND,
    BLINDING,
    CALL,
    EXIT,
    JA,
    JMP,
    JMP32,
    JNE,
    JSET,
    LD,
    LD_IMM64,
    LDX,
    LSH,
    MEM,
    MOV,
    OR,
    ST,
    STX,
    XOR,
    Unknown,
    X,
    access_mask,
    check_reloadable,
    decode,
    encode,
    prologue,
    unblind,
)
from gpushim_hooks.rule import LAST_MINOR, Rule
from tests.hooks.shapes import ALLOW, DENY, generated, systemd

if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question

ONE = st.tuples(
    st.integers(0, 255),
    st.integers(0, 15),
    st.integers(0, 15),
    st.integers(-1 << 15, (1 << 15) - 1),
    st.integers(-1 << 31, (1 << 31) - 1),
)


@given(st.lists(ONE))
def test_instructions_survive_their_bytes(code: list[Instruction]) -> None:
    assert decode(encode(code)) == code


@given(st.lists(st.binary(min_size=8, max_size=8)).map(b"".join))
def test_bytes_survive_their_instructions(code: bytes) -> None:
    assert encode(decode(code)) == code


@given(ONE)
def test_the_bytes_are_those_of_struct_bpf_insn(one: Instruction) -> None:
    code, destination, source, offset, immediate = one

    assert encode([one]) == struct.pack("<BBhi", code, destination | source << 4, offset, immediate)


def test_the_numbers_are_the_kernels(tmp_path: Path) -> None:
    names = {name: name for name in ("LD", "LDX", "ST", "STX", "ALU", "JMP", "JMP32", "ALU64", "X", "MEM")}
    names |= {
        name: name for name in re.findall(r"\w+", "ADD SUB MUL DIV OR AND LSH RSH NEG MOD XOR MOV ARSH END")
    }
    names |= {
        name: name
        for name in re.findall(r"\w+", "JA JEQ JGT JGE JSET JNE JSGT JSGE CALL EXIT JLT JLE JSLT JSLE")
    }
    lines = [f'printf("{ours} %d\\n", BPF_{theirs});' for ours, theirs in names.items()]
    lines.append('printf("LD_IMM64 %d\\n", BPF_LD | BPF_IMM | BPF_DW);')
    lines += [
        f'printf("type {ours} %d\\n", BPF_DEVCG_DEV_{theirs});'
        for ours, theirs in (("b", "BLOCK"), ("c", "CHAR"))
    ]
    lines += [
        f'printf("access {ours} %d\\n", BPF_DEVCG_ACC_{theirs});'
        for ours, theirs in (("m", "MKNOD"), ("r", "READ"), ("w", "WRITE"))
    ]
    source = tmp_path / "numbers.c"
    source.write_text(f"#include <linux/bpf.h>\n#include <stdio.h>\nint main(void) {{ {' '.join(lines)} }}\n")
    subprocess.run(["gcc", "-o", str(tmp_path / "numbers"), str(source)], check=True)
    said = subprocess.run([str(tmp_path / "numbers")], capture_output=True, text=True, check=True).stdout
    kernels = dict(line.rsplit(" ", 1) for line in said.splitlines())

    ours = {name: str(getattr(instructions, name)) for name in [*names, "LD_IMM64"]}
    ours |= {f"type {name}": str(value) for name, value in instructions.TYPES.items()}
    ours |= {f"access {name}": str(access_mask(name)) for name in "mrw"}
    assert ours == kernels


def test_no_rules_make_no_prologue() -> None:
    assert prologue([]) == []


def test_a_rule_takes_seven_instructions_and_leaves_r1_alone() -> None:
    code = prologue([Rule(511, 3, 137, "r"), Rule(195, 255, 255, "rwm")])

    assert len(code) == 6 + 7 + 6
    assert code[6:13] == [
        (JMP | JNE, 2, 0, 6, 2),
        (JMP | JSET, 3, 0, 5, 1 | 4),
        (JMP | JNE, 4, 0, 4, 511),
        (JMP | instructions.JLT, 5, 0, 3, 3),
        (JMP | instructions.JGT, 5, 0, 2, 137),
        (ALU64 | MOV, 0, 0, 0, 1),
        (JMP | EXIT, 0, 0, 0, 0),
    ]
    written = {one[1] for one in code if one[0] & 7 in (ALU, ALU64, LDX)}
    assert written == {0, 2, 3, 4, 5}


RULES = st.lists(
    st.builds(
        lambda major, first, more, access, type: Rule(
            major, first, min(first + more, LAST_MINOR), access, type
        ),
        st.sampled_from([195, 511]),
        st.sampled_from([0, 1, 3, 255, LAST_MINOR]),
        st.sampled_from([0, 1, 134]),
        st.sampled_from(["r", "w", "rw", "m", "rm", "rwm"]),
        st.sampled_from(["c", "c", "b"]),
    ),
    max_size=4,
)
QUESTIONS = st.tuples(
    st.sampled_from(["c", "b"]),
    st.sampled_from([1, 194, 195, 511, 512]),
    st.sampled_from([0, 1, 2, 3, 4, 134, 137, 138, 254, 255, 256, LAST_MINOR]),
    st.sampled_from(["r", "w", "rw", "m"]),
)


@given(RULES, QUESTIONS)
def test_a_prologue_allows_its_rules_and_leaves_the_rest(rules: list[Rule], question: Question) -> None:
    type, major, minor, access = question
    granted = any(
        (rule.type, rule.major) == (type, major)
        and rule.first <= minor <= rule.last
        and access in rule.asked()
        for rule in rules
    )

    for rest in (ALLOW, DENY, systemd()):
        before = emulator.allows(rest, question)
        assert emulator.allows(prologue(rules) + rest, question) == (granted or before)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param([(JMP | CALL, 0, 0, 0, 7)], "instruction 0: it calls a function", id="helper"),
        pytest.param([(JMP | CALL, 0, 1, 0, 7)], "instruction 0: it calls a function", id="subprogram"),
        pytest.param([*ALLOW, (ALU64 | MOV, 11, 0, 0, 7)], "instruction 2: register 11", id="blinded"),
        pytest.param([(ALU64 | MOV | X, 0, 11, 0, 0)], "instruction 0: register 11", id="blinded-source"),
        pytest.param(
            [(LD_IMM64, 1, 1, 0, 5), (0, 0, 0, 0, 0)],
            "instruction 0: it refers to a map or a function",
            id="map",
        ),
        pytest.param([(LDX | 0x80, 0, 1, 0, 0)], "instruction 0: access mode 0x80", id="sign-extending"),
        pytest.param([(STX | 0xC0, 10, 1, -8, 0)], "instruction 0: access mode 0xc0", id="atomic"),
        pytest.param([(LD | 0x20, 0, 0, 0, 0)], "instruction 0: code 0x20", id="packet"),
    ],
)
def test_what_cannot_be_loaded_again(code: list[Instruction], why: str) -> None:
    with pytest.raises(Unknown) as raised:
        check_reloadable(code)

    assert str(raised.value) == why


def test_what_is_met_can_be_loaded_again() -> None:
    check_reloadable(systemd())
    check_reloadable([(LD_IMM64, 0, 0, 0, 1), (0, 0, 0, 0, 0), (ST | MEM, 10, 0, -8, 1), *ALLOW])


def blinded(code: list[Instruction], chance: random.Random) -> list[Instruction]:
    """What kernel/bpf/core.c makes of *code* (bpf_jit_blind_insn, bpf_patch_insn_single)."""
    groups: list[list[Instruction]] = []
    starts: dict[int, int] = {}
    at = 0
    while at < len(code):
        starts[at] = len(groups)
        kind, destination, source, offset, immediate = code[at]
        hide = [(kind & 7 | MOV, BLINDING, 0, 0, 0), (kind & 7 | XOR, BLINDING, 0, 0, 0)]
        number = chance.randint(-1 << 31, (1 << 31) - 1)
        operation = kind & 0xF0
        if kind == LD_IMM64:
            high = code[at + 1][4]
            groups.append(
                [
                    (ALU64 | MOV, BLINDING, 0, 0, high ^ number),
                    (ALU64 | XOR, BLINDING, 0, 0, number),
                    (ALU64 | LSH, BLINDING, 0, 0, 32),
                    (ALU64 | MOV | X, destination, BLINDING, 0, 0),
                    (ALU | MOV, BLINDING, 0, 0, immediate ^ number),
                    (ALU | XOR, BLINDING, 0, 0, number),
                    (ALU64 | OR | X, destination, BLINDING, 0, 0),
                ]
            )
            at += 2
            continue
        at += 1
        if kind in (ALU | MOV, ALU64 | MOV) and immediate == 0:
            groups.append([(ALU64 | XOR | X, destination, destination, 0, 0)])
        elif (
            kind & 7 in (ALU, ALU64)
            and not kind & X
            and operation in (ADD, 0x10, 0x20, 0x30, OR, AND, 0x90, XOR, MOV)
        ):
            pair = [(*hide[0][:4], immediate ^ number), (*hide[1][:4], number)]
            groups.append([*pair, (kind | X, destination, BLINDING, offset, 0)])
        elif (
            kind & 7 in (JMP, JMP32) and not kind & X and operation not in (JA, CALL, EXIT)
        ) or kind & 7 == ST:
            wide = ALU if kind & 7 == JMP32 else ALU64
            pair = [(wide | MOV, BLINDING, 0, 0, immediate ^ number), (wide | XOR, BLINDING, 0, 0, number)]
            last = kind & ~7 | STX if kind & 7 == ST else kind | X
            groups.append([*pair, (last, destination, BLINDING, offset, 0)])
        else:
            groups.append([(kind, destination, source, offset, immediate)])
    starts[at] = len(groups)
    places = [sum(len(group) for group in groups[:n]) for n in range(len(groups) + 1)]
    old = {group: at for at, group in starts.items()}
    for n, group in enumerate(groups):
        kind, destination, source, offset, immediate = group[-1]
        if kind & 7 in (JMP, JMP32) and kind & 0xF0 not in (CALL, EXIT):
            goal = places[starts[old[n] + 1 + offset]]
            group[-1] = (kind, destination, source, goal - places[n + 1], immediate)
    return [one for group in groups for one in group]


@given(st.randoms(use_true_random=False))
def test_blinding_is_undone(chance: random.Random) -> None:
    code = generated(chance)

    hidden = blinded(code, chance)

    # `mov32 rX, 0` is hidden as `mov rX, 0` is, and is the same.
    plain = [(ALU64 | MOV, *one[1:]) if one[0] == ALU | MOV and one[4] == 0 else one for one in code]
    plain = [
        (ALU64 | MOV, one[1], 0, 0, 0) if one[0] == ALU64 | XOR | X and one[1] == one[2] else one
        for one in plain
    ]
    assert unblind(hidden) == plain
    check_reloadable(unblind(hidden))


@given(st.randoms(use_true_random=False), QUESTIONS)
def test_a_blinded_program_is_run_as_it_is(chance: random.Random, question: Question) -> None:
    code = generated(chance)

    assert emulator.allows(blinded(code, chance), question) == emulator.allows(code, question)


def test_a_jump_backwards_is_undone_too() -> None:
    code = [
        (ALU64 | MOV, 0, 0, 0, 0),
        (ALU64 | ADD, 0, 0, 0, 3),
        (JMP | JNE, 0, 0, -2, 9),
        (JMP32 | JA, 0, 0, 0, 0),
        (JMP | EXIT, 0, 0, 0, 0),
    ]

    assert unblind(blinded(code, random.Random(0))) == code


def test_a_jump_into_a_hidden_constant_is_not_guessed() -> None:
    hidden = blinded([(ALU64 | MOV, 0, 0, 0, 7), *ALLOW], random.Random(0))

    with pytest.raises(Unknown) as raised:
        unblind([(JMP | JA, 0, 0, 1, 0), *hidden])

    assert str(raised.value) == "instruction 0: it jumps to 2, inside of a blinded constant"


@given(st.lists(ONE, max_size=30))
def test_any_bytes_are_undone_or_unknown(code: list[Instruction]) -> None:
    try:
        plain = unblind(code)
    except Unknown:
        return
    assert len(plain) <= len(code)

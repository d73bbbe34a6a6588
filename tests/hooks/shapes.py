"""Device programs as they are met: systemd's shape, and any that the kernel's verifier may take."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from gpushim_hooks.instructions import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    DIV,
    EXIT,
    JA,
    JEQ,
    JGE,
    JGT,
    JLE,
    JLT,
    JMP,
    JMP32,
    JNE,
    JSET,
    JSGE,
    JSGT,
    JSLE,
    JSLT,
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
    TYPES,
    XOR,
    X,
    access_mask,
)

if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction

DENY: list[Instruction] = [(ALU64 | MOV, 0, 0, 0, 0), (JMP | EXIT, 0, 0, 0, 0)]
ALLOW: list[Instruction] = [(ALU64 | MOV, 0, 0, 0, 1), (JMP | EXIT, 0, 0, 0, 0)]

# What systemd allows a unit with PrivateDevices= or DevicePolicy=closed: core/cgroup.c, and one more.
CLOSED: list[tuple[str, int, int | None, str]] = [
    ("c", 1, 3, "rwm"),
    ("c", 1, 5, "rwm"),
    ("c", 1, 7, "rwm"),
    ("c", 1, 8, "rwm"),
    ("c", 1, 9, "rwm"),
    ("c", 5, 0, "rwm"),
    ("c", 5, 2, "rwm"),
    ("c", 136, None, "rw"),
    ("b", 8, None, "r"),
]


def systemd(rules: list[tuple[str, int, int | None, str]] = CLOSED) -> list[Instruction]:
    """The shape of shared/bpf-devices in systemd 252: blocks that jump to one end, with r1 for scratch."""
    out: list[Instruction] = [
        (LDX | MEM | 0x08, 2, 1, 0, 0),
        (LDX | MEM, 3, 1, 0, 0),
        (ALU | RSH, 3, 0, 0, 16),
        (LDX | MEM, 4, 1, 4, 0),
        (LDX | MEM, 5, 1, 8, 0),
    ]
    blocks: list[list[Instruction]] = []
    for type, major, minor, access in rules:
        block: list[Instruction] = []
        if access != "rwm":
            block += [(ALU | MOV | X, 1, 3, 0, 0), (ALU | AND, 1, 0, 0, access_mask(access))]
            block += [(JMP | JNE | X, 1, 3, 0, 0)]
        block += [(JMP | JNE, 2, 0, 0, TYPES[type]), (JMP | JNE, 4, 0, 0, major)]
        if minor is not None:
            block += [(JMP | JNE, 5, 0, 0, minor)]
        blocks.append([*block, (JMP | JA, 0, 0, 0, 0)])
    left = sum(len(block) for block in blocks)
    for block in blocks:
        for at, (code, destination, source, _, immediate) in enumerate(block):
            last = at == len(block) - 1
            offset = left - at + 1 if last else len(block) - at - 1
            jumps = code & 7 == JMP
            out.append((code, destination, source, offset if jumps else 0, immediate))
        left -= len(block)
    return [*out, (ALU64 | MOV, 0, 0, 0, 0), (JMP | JA, 0, 0, 1, 0), (ALU64 | MOV, 0, 0, 0, 1), DENY[1]]


CONSTANTS = [0, 1, 2, 3, 4, 5, 7, 8, 136, 195, 255, 511, 0xFFFF, -1, -2, 1 << 20, (1 << 31) - 1, -1 << 31]
REGISTERS = [0, 2, 3, 4, 5, 6, 7, 8, 9]
ANY = [ADD, SUB, MUL, OR, AND, XOR, MOV]
SHIFTS = [LSH, RSH, ARSH]
TESTS = [JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, JLT, JLE, JSLT, JSLE]


def generated(chance: random.Random) -> list[Instruction]:
    """A program of every instruction that we claim to know, in random order, that jumps forward only."""
    items: list[list[Instruction]] = [
        [(LDX | MEM, 2, 1, 0, 0)],
        [(LDX | MEM | chance.choice((0x08, 0x10)), 3, 1, chance.choice((0, 2)), 0)],
        [(LDX | MEM, 4, 1, 4, 0)],
        [(LDX | MEM, 5, 1, 8, 0)],
        [(ALU64 | MOV | X, 6, 5, 0, 0)],
        *[[(ALU64 | MOV, register, 0, 0, chance.choice(CONSTANTS))] for register in (0, 7, 8, 9)],
    ]
    first = len(items)
    jumps: dict[int, int] = {}  # items that jump, and to which
    length = chance.randint(4, 30)
    for at in range(first, first + length):
        if chance.random() < 0.4:
            jumps[at] = chance.randint(at + 1, first + length)
            items.append([_test(chance)])
        else:
            items.append(_calculation(chance))
    starts = [sum(len(item) for item in items[:at]) for at in range(len(items) + 1)]
    for at, goal in jumps.items():
        code, destination, source, _, immediate = items[at][0]
        items[at] = [(code, destination, source, starts[goal] - starts[at] - 1, immediate)]
    end = [
        (ALU64 | MOV | X, 0, chance.choice(REGISTERS), 0, 0),
        (ALU64 | RSH, 0, 0, 0, chance.choice((0, 0, 0, 1, 8, 31, 32, 63))),
        (ALU64 | AND, 0, 0, 0, 1),
        (JMP | EXIT, 0, 0, 0, 0),
    ]
    return [instruction for item in items for instruction in item] + end


def _test(chance: random.Random) -> Instruction:
    code = chance.choice((JMP, JMP32)) | chance.choice(TESTS)
    left = chance.choice((4, 5, 5, 6, *REGISTERS))
    if chance.random() < 0.2:
        return code | X, left, chance.choice(REGISTERS), 0, 0
    return code, left, 0, 0, chance.choice(CONSTANTS)


def _calculation(chance: random.Random) -> list[Instruction]:
    kind = chance.choice((ALU, ALU64))
    register, other = chance.choice((0, 2, 3, 7, 8, 9)), chance.choice(REGISTERS)
    pick = chance.randrange(8)
    if pick == 0:
        return [(kind | chance.choice(SHIFTS), register, 0, 0, chance.randrange(64 if kind == ALU64 else 32))]
    if pick == 1:
        divisor = chance.choice([constant for constant in CONSTANTS if constant])
        return [(kind | chance.choice((DIV, MOD)), register, 0, 0, divisor)]
    if pick == 2:
        return [(kind | chance.choice((DIV, MOD, *SHIFTS)) | X, register, other, 0, 0)]
    if pick == 3:
        return [(kind | NEG, register, 0, 0, 0)]
    if pick == 4:
        size = chance.choice((0x00, 0x08, 0x10, 0x18))
        store = chance.choice(((STX, other, 0), (ST, 0, chance.choice(CONSTANTS))))
        written = (store[0] | MEM | size, 10, store[1], -8, store[2])
        return [written, (LDX | MEM | size, register, 10, -8, 0)]
    if pick == 5:
        low, high = chance.choice(CONSTANTS), chance.choice(CONSTANTS)
        return [(LD_IMM64, register, 0, 0, low), (0, 0, 0, 0, high)]
    if pick == 6:
        return [(kind | chance.choice(ANY) | X, register, other, 0, 0)]
    return [(kind | chance.choice(ANY), register, 0, 0, chance.choice(CONSTANTS))]

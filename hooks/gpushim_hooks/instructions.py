"""BPF instructions: their bytes, the block that allows rules, and what constant blinding made of them. Pure.

An instruction is `(code, destination, source, offset, immediate)`. Source: RFC 9669; of the program type,
linux/bpf.h (struct bpf_cgroup_dev_ctx): r1 points at three 32-bit words: access << 16 | type, major, minor.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.rule import Rule

    Instruction = tuple[int, int, int, int, int]

# Classes, the low three bits of a code.
LD, LDX, ST, STX, ALU, JMP, JMP32, ALU64 = range(8)
X = 0x08  # the second operand is the source register, not the immediate
SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}  # bytes of a load or store, by code & 0x18
MEM = 0x60  # the mode of a plain load or store, code & 0xE0
LD_IMM64 = 0x18  # takes two slots

ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, MOD, XOR, MOV, ARSH, END = range(0x00, 0xE0, 0x10)
JA, JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, CALL, EXIT, JLT, JLE, JSLT, JSLE = range(0x00, 0xE0, 0x10)

BLINDING = 11  # the register that only the kernel's own rewriting uses (BPF_REG_AX)

TYPES = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR
_ACCESSES = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_MKNOD, _READ, _WRITE


class Unknown(Exception):
    """A program does something of which we do not know exactly what it comes to."""


def access_mask(access: str) -> int:
    return sum([_ACCESSES[letter] for letter in access])


def decode(code: bytes) -> "list[Instruction]":
    """The instructions in *code*, whose length is a multiple of 8 (little-endian, as our machines are)."""
    out = []
    for at in range(0, len(code), 8):
        offset = int.from_bytes(code[at + 2 : at + 4], "little", signed=True)
        immediate = int.from_bytes(code[at + 4 : at + 8], "little", signed=True)
        out.append((code[at], code[at + 1] & 15, code[at + 1] >> 4, offset, immediate))
    return out


def encode(instructions: "list[Instruction]") -> bytes:
    """What decode reads."""
    out = bytearray()
    for code, destination, source, offset, immediate in instructions:
        out += bytes((code, destination | source << 4))
        out += offset.to_bytes(2, "little", signed=True) + immediate.to_bytes(4, "little", signed=True)
    return bytes(out)


def prologue(rules: "list[Rule]") -> "list[Instruction]":
    """Return 1 where one of *rules* allows all that is asked; else run on into what follows.

    r1 is left alone, and what follows finds r0 and r2 to r5 written, which it cannot have relied on. Jumps
    are 64-bit ones: those of 32 bits need Linux 5.1.
    """
    if not rules:
        return []
    out = [
        (LDX | MEM, 2, 1, 0, 0),
        (ALU | MOV | X, 3, 2, 0, 0),
        (ALU | RSH, 3, 0, 0, 16),  # r3: access
        (ALU | AND, 2, 0, 0, 0xFFFF),  # r2: type
        (LDX | MEM, 4, 1, 4, 0),  # r4: major
        (LDX | MEM, 5, 1, 8, 0),  # r5: minor
    ]
    for rule in rules:
        out += _block(rule)
    return out


def _block(rule: "Rule") -> "list[Instruction]":
    """Seven instructions at most; each test that fails jumps behind them."""
    tests = [(JNE, 2, TYPES[rule.type])]
    others = 7 & ~access_mask(rule.access)
    if others:
        tests.append((JSET, 3, others))
    tests += [(JNE, 4, rule.major), (JLT, 5, rule.first), (JGT, 5, rule.last)]
    end = len(tests) + 1  # two more follow the last test
    out = [(JMP | test, register, 0, end - at, value) for at, (test, register, value) in enumerate(tests)]
    return [*out, (ALU64 | MOV, 0, 0, 0, 1), (JMP | EXIT, 0, 0, 0, 0)]


def check_reloadable(instructions: "list[Instruction]") -> None:
    """Unknown where the kernel shows something else than it was given and would take again."""
    for at, (code, destination, source, _, _) in enumerate(instructions):
        kind = code & 7
        if kind in (JMP, JMP32) and code & 0xF0 == CALL:
            raise Unknown(f"instruction {at}: it calls a function")
        if destination > 10 or source > 10:
            raise Unknown(f"instruction {at}: register {max(destination, source)}")
        if code == LD_IMM64 and source:
            raise Unknown(f"instruction {at}: it refers to a map or a function")
        if kind in (LDX, ST, STX) and code & 0xE0 != MEM:
            raise Unknown(f"instruction {at}: access mode {code & 0xE0:#x}")
        if kind == LD and code not in (LD_IMM64, 0):
            raise Unknown(f"instruction {at}: code {code:#x}")


def unblind(instructions: "list[Instruction]") -> "list[Instruction]":
    """*instructions* as they were before the kernel hid their constants (net.core.bpf_jit_harden).

    Source: kernel/bpf/core.c, bpf_jit_blind_insn: `op rX, K` became `mov AX, K ^ random; xor AX, random;
    op rX, AX`, and `mov rX, 0` became `xor rX, rX`, which the verifier does not take of a register that was
    never written. Unknown where a jump lands inside of such a group.
    """
    out: list[Instruction] = []
    places: dict[int, int] = {}  # where a jump may land, old and new
    jumps: list[tuple[int, int]] = []  # the new place of each, and the old place that it goes to
    at = 0
    while at < len(instructions):
        places[at] = len(out)
        taken, group = _before(instructions, at)
        code, _, _, offset, immediate = group[0]
        if code & 7 in (JMP, JMP32) and code & 0xF0 not in (CALL, EXIT):
            far = code == JMP32 | JA
            jumps.append((len(out), at + taken + (immediate if far else offset)))
        out += group
        at += taken
    places[at] = len(out)
    for place, goal in jumps:
        if goal not in places:
            raise Unknown(f"instruction {place}: it jumps to {goal}, inside of a blinded constant")
        code, destination, source, offset, immediate = out[place]
        distance = places[goal] - place - 1
        if code == JMP32 | JA:
            immediate = distance
        else:
            offset = distance
        out[place] = (code, destination, source, offset, immediate)
    return out


def _before(instructions: "list[Instruction]", at: int) -> "tuple[int, list[Instruction]]":
    """How many instructions from *at* on came from one, and that one."""
    code, destination, source, offset, _ = instructions[at]
    if code == LD_IMM64:
        return 2, instructions[at : at + 2]
    if code == ALU64 | XOR | X and source == destination:
        return 1, [(ALU64 | MOV, destination, 0, offset, 0)]
    constant = _blinded(instructions, at)
    if constant is None:
        return 1, [instructions[at]]
    wide = _blinded_wide(instructions, at)
    if wide is not None:
        return 7, wide
    code, destination, source, offset, _ = instructions[at + 2]
    if source != BLINDING or destination == BLINDING:
        return 1, [instructions[at]]
    if code & 7 == STX and code & 0xE0 == MEM:
        return 3, [(code & ~7 | ST, destination, 0, offset, constant)]
    if code & 7 in (ALU, ALU64, JMP, JMP32) and code & X:
        return 3, [(code & ~X, destination, 0, offset, constant)]
    return 1, [instructions[at]]


def _blinded(instructions: "list[Instruction]", at: int) -> "int | None":
    """The constant of a `mov AX, K ^ random; xor AX, random` at *at* that something follows."""
    if at + 2 >= len(instructions):
        return None
    first, second = instructions[at], instructions[at + 1]
    for kind in (ALU, ALU64):
        if first[:3] == (kind | MOV, BLINDING, 0) and second[:3] == (kind | XOR, BLINDING, 0):
            return first[4] ^ second[4]
    return None


def _blinded_wide(instructions: "list[Instruction]", at: int) -> "list[Instruction] | None":
    """The load of a 64-bit constant whose two halves the seven instructions at *at* hide."""
    high, low = _blinded(instructions, at), _blinded(instructions, at + 4)
    if high is None or low is None:
        return None
    shift, move, join = instructions[at + 2], instructions[at + 3], instructions[at + 6]
    register = move[1]
    if shift != (ALU64 | LSH, BLINDING, 0, 0, 32) or move != (ALU64 | MOV | X, register, BLINDING, 0, 0):
        return None
    if join != (ALU64 | OR | X, register, BLINDING, 0, 0):
        return None
    return [(LD_IMM64, register, 0, 0, low), (0, 0, 0, 0, high)]

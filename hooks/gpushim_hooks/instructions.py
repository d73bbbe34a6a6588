"""BPF instructions of device programs: bytes to and fro, rules as instructions, blinding undone. Pure.

Source: kernel Documentation/bpf/standardization/instruction-set.rst; include/uapi/linux/bpf.h, struct
bpf_cgroup_dev_ctx.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.device_rule import DeviceRule

SIZE = 8  # bytes of one instruction

# The classes, and the bits of a code that tell them.
LD, LDX, ST, STX, ALU, JMP, JMP32, ALU64 = range(8)
CLASS = 7
REGISTER = 0x08  # the second operand is a register, not an immediate
OPERATION = 0xF0

# Operations of a jump that are none.
CALL, EXIT, ALWAYS = 0x80, 0x90, 0x00
LOAD_64 = 0x18  # takes two instructions
_XOR, _MOVE = 0xA0, 0xB0

CHAR = 2  # BPF_DEVCG_DEV_CHAR
ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*

_BLIND = 11  # the register that no program can name, and that the kernel's constant blinding uses


class Instruction:
    """One instruction: *immediate* is signed, *offset* counts instructions from the next one."""

    __slots__ = ("code", "immediate", "into", "offset", "source")

    def __init__(self, code: int, into: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> None:
        self.code = code
        self.into = into
        self.source = source
        self.offset = offset
        self.immediate = immediate

    @property
    def jumps(self) -> bool:
        """Whether it may go on elsewhere than behind itself."""
        return self.code & CLASS in (JMP, JMP32) and self.code & OPERATION not in (CALL, EXIT)


def decode(code: bytes) -> list[Instruction]:
    """The instructions of *code*, as the kernel shows it (`xlated`), on a little-endian machine."""
    out = []
    for at in range(0, len(code) - SIZE + 1, SIZE):
        registers = code[at + 1]
        offset = int.from_bytes(code[at + 2 : at + 4], "little", signed=True)
        immediate = int.from_bytes(code[at + 4 : at + 8], "little", signed=True)
        out.append(Instruction(code[at], registers & 15, registers >> 4, offset, immediate))
    return out


def encode(instructions: list[Instruction]) -> bytes:
    """The bytes of *instructions*, as bpf(2) takes them."""
    return b"".join(
        [
            bytes((one.code, one.into | one.source << 4))
            + one.offset.to_bytes(2, "little", signed=True)
            + one.immediate.to_bytes(4, "little", signed=True)
            for one in instructions
        ]
    )


def access_bits(access: str) -> int:
    """*access* (of r, w, m) as the kernel's mask."""
    return sum([ACCESS[letter] for letter in dict.fromkeys(access)])


def allowing(rules: "list[DeviceRule]") -> list[Instruction]:
    """What stands in front of a program so that it allows *rules* too.

    Register 1 is left as it was, and jumps are relative: the program behind goes on as if it stood alone.
    Comparisons are of 64 bits, since those of 32 need Linux 5.1.
    """
    out = [
        Instruction(LDX | 0x60, 2, 1, 0),  # r2 = access and type
        Instruction(ALU | REGISTER | _MOVE, 3, 2),
        Instruction(ALU | 0x70, 3, immediate=16),  # r3 = access
        Instruction(ALU | 0x50, 2, immediate=0xFFFF),  # r2 = type
        Instruction(LDX | 0x60, 4, 1, 4),  # r4 = major
        Instruction(LDX | 0x60, 5, 1, 8),  # r5 = minor
    ]
    for rule in merged(rules):
        out += _block(*rule)
    return out


def merged(rules: "list[DeviceRule]") -> list[tuple[int, "int | None", "int | None", int]]:
    """*rules* as (major, first minor, last minor, access mask), neighbours of one major and mask as one."""
    out: list[tuple[int, int | None, int | None, int]] = []
    keyed = [(rule.major, access_bits(rule.access), rule.first, rule.last) for rule in rules]
    for major, mask, first, last in sorted(keyed, key=lambda k: (k[0], k[1], k[2] is not None, k[2] or 0)):
        before = out[-1] if out else None
        if before is None or (before[0], before[3]) != (major, mask):
            out.append((major, first, last, mask))
        elif before[1] is None or before[2] is None:
            continue  # any minor is allowed already
        elif first is not None and last is not None and first <= before[2] + 1:
            out[-1] = (major, before[1], max(before[2], last), mask)
        else:
            out.append((major, first, last, mask))
    return out


def _block(major: int, first: "int | None", last: "int | None", mask: int) -> list[Instruction]:
    """Allow one range of minors: each test that fails goes on behind the block."""
    tests = [Instruction(JMP | 0x50, 2, immediate=CHAR)]  # jne
    if mask != 7:
        tests.append(Instruction(JMP | 0x40, 3, immediate=7 & ~mask))  # jset: asks for more than this
    tests.append(Instruction(JMP | 0x50, 4, immediate=major))
    if first is not None and last is not None:
        if first == last:
            tests.append(Instruction(JMP | 0x50, 5, immediate=first))
        else:
            tests += [
                Instruction(JMP | 0xA0, 5, immediate=first),  # jlt
                Instruction(JMP | 0x20, 5, immediate=last),  # jgt
            ]
    for n, test in enumerate(tests):
        test.offset = len(tests) - n + 1
    return [*tests, Instruction(ALU64 | _MOVE, 0, immediate=1), Instruction(JMP | EXIT)]


def unblinded(instructions: list[Instruction]) -> list[Instruction]:
    """*instructions* without the constant blinding of net.core.bpf_jit_harden; ValueError where it is another's.

    The kernel turns `op r, imm` into `mov r11, random ^ imm; xor r11, random; op r, r11`, and `mov r, 0` into
    `xor r, r` (kernel/bpf/core.c, bpf_jit_blind_insn; verifier.c). Neither can be loaded again as it is.
    """
    plain: dict[int, Instruction] = {}
    skipped: set[int] = set()
    ends: dict[int, int] = {}
    for n, one in enumerate(instructions):
        if n in skipped:
            continue
        plain[n], ends[n] = one, n
        if one.into == _BLIND:
            if not _is_blinded(instructions[n : n + 3]):
                raise ValueError(f"instruction {n} uses register {_BLIND} in an unknown way")
            _, mask, real = instructions[n : n + 3]
            value = _signed(one.immediate ^ mask.immediate)
            plain[n] = Instruction(real.code & ~REGISTER, real.into, 0, real.offset, value)
            skipped |= {n + 1, n + 2}
            ends[n] = n + 2
    place = {old: new for new, old in enumerate(plain)}
    place[len(instructions)] = len(plain)
    return [_moved(one, n, ends[n], place) for n, one in plain.items()]


def _is_blinded(three: list[Instruction]) -> bool:
    if len(three) < 3:
        return False
    move, mask, real = three
    return (
        move.code in (ALU64 | _MOVE, ALU | _MOVE)
        and mask.code in (ALU64 | _XOR, ALU | _XOR)
        and mask.into == _BLIND
        and real.source == _BLIND
        and real.code & REGISTER != 0
        and real.into != _BLIND
    )


def _moved(one: Instruction, old: int, end: int, place: dict[int, int]) -> Instruction:
    """*one*, which stood at *old* and ended at *end*, with its jump to where its target is now."""
    if one.code in (ALU64 | REGISTER | _XOR, ALU | REGISTER | _XOR) and one.into == one.source:
        return Instruction(ALU64 | _MOVE, one.into)
    if not one.jumps:
        return one
    far = one.code == JMP32 | ALWAYS  # gotol: the distance stands in the immediate
    target = end + 1 + (one.immediate if far else one.offset)
    if target not in place:
        raise ValueError(f"instruction {old} jumps into the middle of a blinded one")
    distance = place[target] - place[old] - 1
    if far:
        return Instruction(one.code, one.into, one.source, one.offset, distance)
    return Instruction(one.code, one.into, one.source, distance, one.immediate)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value

"""What a device program answers, found by running it: exactly, or Unknown. Pure.

Source: RFC 9669; what the kernel makes of the answer, kernel/bpf/cgroup.c (bpf_prog_run_array_cg).
"""

from gpushim_hooks.instructions import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    CALL,
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
    SIZES,
    ST,
    STX,
    SUB,
    TYPES,
    XOR,
    Unknown,
    X,
    access_mask,
)
from gpushim_hooks.rule import LAST_MINOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question, Rule

    Pointer = tuple[str, int]  # CONTEXT or STACK, and bytes from there

STEPS = 100_000  # 30 times the longest program seen; a second or less
WAYS = 4096  # that one program may take for the minors of one major

_NOT_EQUAL = JMP | JNE
_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1
_CONTEXT, _CONTEXT_SIZE, _MINOR_AT = "context", 12, 8
_STACK, _STACK_SIZE = "stack", 512


def allows(instructions: "list[Instruction]", question: "Question") -> bool:
    """Whether the program allows what is asked; Unknown where it cannot be said."""
    return answer(instructions, question)[0]


def allows_rule(instructions: "list[Instruction]", rule: "Rule") -> bool:
    """Whether the program allows all of *rule*, for each of its minors."""
    for access in rule.asked():
        minor, ways = rule.first, 0
        while minor <= rule.last:
            allowed, _, last = answer(instructions, (rule.type, rule.major, minor, access))
            ways += 1
            if not allowed:
                return False
            if ways > WAYS:
                raise Unknown(f"it tells more than {WAYS} minors of major {rule.major} from each other")
            minor = last + 1
    return True


def answer(instructions: "list[Instruction]", question: "Question") -> tuple[bool, int, int]:
    """The answer to *question*, and the first and last minor around it that take the same way through."""
    run = _Run(instructions, question)
    left = STEPS
    while left > 0:
        left -= run.skip() + 1
        if run.step():
            return run.result() != 0, run.first, run.last
    raise Unknown(f"it takes more than {STEPS} steps")


class _Run:
    """One run: a register holds a number, a pointer, or None where nothing was written to it."""

    __slots__ = ("at", "code", "context", "first", "last", "minor", "minors", "registers", "stack")

    def __init__(self, instructions: "list[Instruction]", question: "Question") -> None:
        type, major, self.minor, access = question
        self.code = instructions
        self.context = access_mask(access) << 16 | TYPES[type] | major << 32 | self.minor << 64
        self.registers: list[int | Pointer | None] = [None] * 16
        self.registers[1], self.registers[10] = (_CONTEXT, 0), (_STACK, 0)
        self.minors = [False] * 16  # whether a register holds the minor itself
        self.first, self.last = 0, LAST_MINOR
        self.stack: dict[int, tuple[int, int | Pointer]] = {}  # by offset: bytes and what they hold
        self.at = 0

    def skip(self) -> int:
        """How many were run of what most of a device program is: a number and a constant compared."""
        code, registers, minors, at = self.code, self.registers, self.minors, self.at
        count = 0
        while 0 <= at < len(code):
            operation, destination, _, offset, immediate = code[at]
            left = registers[destination]
            if operation != _NOT_EQUAL or offset < 0 or minors[destination] or left.__class__ is not int:
                break
            at += 1 + offset if left != immediate & _U64 else 1
            count += 1
        self.at = at
        return count

    def step(self) -> bool:
        """Run one instruction; true at the end of the program."""
        if not 0 <= self.at < len(self.code):
            raise self._unknown("there is none")
        code, destination, source, offset, immediate = self.code[self.at]
        kind = code & 7
        if kind in (JMP, JMP32):
            if code & 0xF0 == EXIT:
                return True
            self._jump(code, destination, source, offset, immediate)
        elif kind in (ALU, ALU64):
            self._calculate(code, destination, source, offset, immediate)
        elif kind == LDX:
            self._load(code, destination, source, offset)
        elif kind in (ST, STX):
            self._store(code, destination, source, offset, immediate)
        elif code == LD_IMM64 and not source and self.at + 1 < len(self.code):
            high = self.code[self.at + 1][4] & _U32
            self._set(destination, high << 32 | immediate & _U32)
            self.at += 1
        else:
            raise self._unknown(f"code {code:#x} with source {source}")
        self.at += 1
        return False

    def result(self) -> int:
        """What the program returns, of which the kernel takes 32 bits."""
        value = self._number(0) & _U32
        if self.minors[0]:
            self._only_this_minor()
        return value

    def _jump(self, code: int, destination: int, source: int, offset: int, immediate: int) -> None:
        test = code & 0xF0
        if test == CALL:
            raise self._unknown("it calls a function")
        if test == JA and not code & X:
            self.at += offset if code & 7 == JMP else immediate
            return
        left = self._number(destination)
        right = self._number(source) if code & X else immediate & _U64
        bits = 64
        if code & 7 == JMP32:
            left, right, bits = left & _U32, right & _U32, 32
        taken = self._test(test, left, right, bits)
        if code & X and self.minors[source]:
            self._only_this_minor()
        elif self.minors[destination]:
            self._narrow(test, right, taken)
        if taken:
            self.at += offset

    def _test(self, test: int, left: int, right: int, bits: int) -> bool:
        if test == JNE:
            return left != right
        if test == JEQ:
            return left == right
        if test == JSET:
            return left & right != 0
        if test in (JSGT, JSGE, JSLT, JSLE):
            left, right = _signed(left, bits), _signed(right, bits)
        if test in (JGT, JSGT):
            return left > right
        if test in (JGE, JSGE):
            return left >= right
        if test in (JLT, JSLT):
            return left < right
        if test in (JLE, JSLE):
            return left <= right
        raise self._unknown(f"jump {test:#x}")

    def _narrow(self, test: int, right: int, taken: bool) -> None:
        """Leave of the minors those that a test of the minor against *right* sends the same way."""
        if test in (JEQ, JNE) and right != self.minor:
            above, limit = self.minor > right, right
        elif test in (JGT, JLE):
            above, limit = taken is (test == JGT), right if taken is (test == JGT) else right + 1
        elif test in (JGE, JLT):
            above, limit = taken is (test == JGE), right - 1 if taken is (test == JGE) else right
        else:
            self._only_this_minor()
            return
        if above:
            self.first = max(self.first, limit + 1)
        else:
            self.last = min(self.last, limit - 1)

    def _only_this_minor(self) -> None:
        self.first = self.last = self.minor

    def _calculate(self, code: int, destination: int, source: int, offset: int, immediate: int) -> None:
        operation, wide = code & 0xF0, code & 7 == ALU64
        if offset:
            raise self._unknown("it is a signed division or move")
        if operation == MOV:
            self._move(destination, source if code & X else None, immediate, wide)
            return
        if operation == XOR and code & X and source == destination:
            self._set(destination, 0)  # blinding writes `mov rX, 0` so, of a register that was never written
            return
        if operation in (ADD, SUB) and wide and isinstance(self.registers[destination], tuple):
            self._move_pointer(operation, destination, source if code & X else None, immediate)
            return
        if self.minors[destination] or (code & X and self.minors[source]):
            self._only_this_minor()
        mask = _U64 if wide else _U32
        left = self._number(destination) & mask
        if operation == NEG and not code & X:
            self._set(destination, -left & mask)
            return
        right = (self._number(source) if code & X else immediate) & mask
        self._set(destination, self._operate(operation, left, right, 64 if wide else 32) & mask)

    def _operate(self, operation: int, left: int, right: int, bits: int) -> int:
        if operation == ADD:
            return left + right
        if operation == SUB:
            return left - right
        if operation == AND:
            return left & right
        if operation == OR:
            return left | right
        if operation == XOR:
            return left ^ right
        if operation == LSH:
            return left << (right & bits - 1)
        if operation == RSH:
            return left >> (right & bits - 1)
        if operation == ARSH:
            return _signed(left, bits) >> (right & bits - 1)
        if operation == MUL:
            return left * right
        if operation == DIV:
            return left // right if right else 0
        if operation == MOD:
            return left % right if right else left
        raise self._unknown(f"operation {operation:#x}")

    def _move(self, destination: int, source: "int | None", immediate: int, wide: bool) -> None:
        if source is None:
            self._set(destination, immediate & (_U64 if wide else _U32))
        elif wide and isinstance(self.registers[source], tuple):
            self._set(destination, self.registers[source])
        else:
            minor = self.minors[source]
            self._set(destination, self._number(source) & (_U64 if wide else _U32))
            self.minors[destination] = minor

    def _move_pointer(self, operation: int, destination: int, source: "int | None", immediate: int) -> None:
        base, at = self._pointer(destination)
        distance = immediate
        if source is not None:
            distance = _signed(self._number(source), 64)
            if self.minors[source]:
                self._only_this_minor()
        self._set(destination, (base, at + distance if operation == ADD else at - distance))

    def _load(self, code: int, destination: int, source: int, offset: int) -> None:
        base, at, size = self._place(code, source, offset)
        if base == _CONTEXT:
            if not 0 <= at <= _CONTEXT_SIZE - size:
                raise self._unknown("it reads outside of the context")
            self._set(destination, self.context >> 8 * at & (1 << 8 * size) - 1)
            if (at, size) == (_MINOR_AT, 4):
                self.minors[destination] = True
            elif at + size > _MINOR_AT:
                self._only_this_minor()
            return
        held = self.stack.get(at)
        if held is None or held[0] != size:
            raise self._unknown("it reads what was never stored so")
        self._set(destination, held[1])

    def _store(self, code: int, destination: int, source: int, offset: int, immediate: int) -> None:
        base, at, size = self._place(code, destination, offset)
        if base != _STACK or not -_STACK_SIZE <= at <= -size:
            raise self._unknown("it writes outside of the stack")
        value: int | Pointer | None = immediate
        if code & 7 == STX:
            value = self.registers[source]
            if self.minors[source]:
                self._only_this_minor()
        if value is None or (isinstance(value, tuple) and size != 8):
            raise self._unknown(f"it stores r{source}, of which the value is not known")
        for other, (length, _) in list(self.stack.items()):
            if other < at + size and at < other + length:
                del self.stack[other]
        self.stack[at] = (size, value if isinstance(value, tuple) else value & (1 << 8 * size) - 1)

    def _place(self, code: int, register: int, offset: int) -> tuple[str, int, int]:
        if code & 0xE0 != MEM:
            raise self._unknown(f"access mode {code & 0xE0:#x}")
        base, at = self._pointer(register)
        return base, at + offset, SIZES[code & 0x18]

    def _pointer(self, register: int) -> "Pointer":
        value = self.registers[register]
        if not isinstance(value, tuple):
            raise self._unknown(f"it uses r{register} as an address")
        return value

    def _number(self, register: int) -> int:
        value = self.registers[register]
        if not isinstance(value, int):
            raise self._unknown(f"it uses r{register}, which holds no number")
        return value

    def _set(self, register: int, value: "int | Pointer | None") -> None:
        if register == 10:
            raise self._unknown("it writes the frame pointer")
        self.registers[register] = value
        self.minors[register] = False

    def _unknown(self, what: str) -> Unknown:
        return Unknown(f"instruction {self.at}: {what}")


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value

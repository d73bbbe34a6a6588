"""What a device program answers: it is run here, and what is not understood to the letter is `Unknown`. Pure.

Source: kernel Documentation/bpf/standardization/instruction-set.rst; kernel/bpf/cgroup.c,
__cgroup_bpf_check_dev_permission: every attached program must return something other than 0.
"""

from gpushim_hooks.instructions import (
    ALU,
    ALU64,
    ALWAYS,
    CALL,
    CLASS,
    EXIT,
    JMP,
    JMP32,
    LDX,
    LOAD_64,
    OPERATION,
    REGISTER,
    ST,
    STX,
    Instruction,
)

STEPS = 100_000  # more is a program that nobody wrote for devices

_CONTEXT, _STACK = 1 << 40, 1 << 41  # where they lie is nobody's business: any use of the number itself is unknown
_STACK_SIZE = 512
_MEMORY = 0x60  # the one addressing mode that device programs use
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_ALL = {ALU: (1 << 32) - 1, ALU64: (1 << 64) - 1, JMP32: (1 << 32) - 1, JMP: (1 << 64) - 1}


class Unknown(Exception):
    """The answer hangs on something that cannot be told from the program alone."""


def answer(program: list[Instruction], kind: int, access: int, major: int, minor: int) -> bool:
    """Whether *program* allows *access*, a mask, to the device *major*:*minor* of *kind* (BPF_DEVCG_*).

    Unknown for anything but plain arithmetic, jumps and the device's own numbers.
    """
    return _Machine(program, access << 16 | kind, major, minor).run() != 0


class _Machine:
    __slots__ = ("at", "context", "program", "registers", "stack")

    def __init__(self, program: list[Instruction], *context: int) -> None:
        self.program = program
        self.context = b"".join([one.to_bytes(4, "little") for one in context])
        self.registers: dict[int, int] = {1: _CONTEXT, 10: _STACK}
        self.stack: dict[int, int] = {}
        self.at = 0

    def run(self) -> int:
        for _ in range(STEPS):
            if not 0 <= self.at < len(self.program):
                raise self._unknown("the program has no end")
            one = self.program[self.at]
            self.at += 1
            family = one.code & CLASS
            if family in (JMP, JMP32):
                if one.code & OPERATION == EXIT:
                    return self._number(0) & 0xFFFFFFFF
                self._jump(one, family)
            elif family in (ALU, ALU64):
                self._calculate(one, family)
            elif family == LDX:
                self._load(one)
            elif family in (ST, STX):
                self._store(one, family)
            elif one.code == LOAD_64:
                self._load_64(one)
            else:
                raise self._unknown(f"code {one.code:#x}")
        raise Unknown(f"more than {STEPS} steps")

    def _unknown(self, what: str) -> Unknown:
        return Unknown(f"instruction {self.at - 1}: {what}")

    def _value(self, register: int) -> int:
        value = self.registers.get(register)
        if value is None:
            raise self._unknown(f"register {register} has no value")
        return value

    def _number(self, register: int) -> int:
        """As _value, where it is no address."""
        value = self._value(register)
        if _is_address(value):
            raise self._unknown(f"register {register} is an address")
        return value

    def _operand(self, one: Instruction, mask: int) -> int:
        return (self._number(one.source) if one.code & REGISTER else one.immediate) & mask

    def _jump(self, one: Instruction, family: int) -> None:
        operation = one.code & OPERATION
        if operation == CALL:
            raise self._unknown(f"calls {one.immediate}")
        if operation == ALWAYS:
            self.at += one.offset if family == JMP else one.immediate
            return
        mask = _ALL[family]
        left, right = self._number(one.into) & mask, self._operand(one, mask)
        if operation in _SIGNED:
            left, right, operation = _signed(left, mask), _signed(right, mask), _SIGNED[operation]
        if operation not in _COMPARE:
            raise self._unknown(f"code {one.code:#x}")
        if _COMPARE[operation](left, right):
            self.at += one.offset

    def _calculate(self, one: Instruction, family: int) -> None:
        operation, mask = one.code & OPERATION, _ALL[family]
        if operation == _MOVE and one.code & REGISTER and family == ALU64 and not one.offset:
            self.registers[one.into] = self._value(one.source)  # an address stays one
            return
        if operation in (_ADD, _SUB) and _is_address(self.registers.get(one.into, 0)):
            self._move_address(one, operation, family)
            return
        if operation == _XOR and one.code & REGISTER and one.source == one.into:
            self.registers[one.into] = 0  # the verifier writes it for a move of 0
            return
        if one.offset:
            raise self._unknown("a signed operation")
        right = 0 if operation == _NEGATE else self._operand(one, mask)
        left = 0 if operation == _MOVE else self._number(one.into) & mask
        width = 64 if family == ALU64 else 32
        if operation == _ARITHMETIC_SHIFT:
            value = _signed(left, mask) >> (right & (width - 1))
        elif operation in _SHIFT:
            value = _SHIFT[operation](left, right & (width - 1))
        elif operation in _ARITHMETIC:
            value = _ARITHMETIC[operation](left, right)
        else:
            raise self._unknown(f"code {one.code:#x}")
        self.registers[one.into] = value & mask

    def _move_address(self, one: Instruction, operation: int, family: int) -> None:
        if family != ALU64:
            raise self._unknown("half of an address")
        by = self._number(one.source) if one.code & REGISTER else one.immediate
        if not -_STACK_SIZE <= by <= _STACK_SIZE:
            raise self._unknown("an address far off")
        self.registers[one.into] += by if operation == _ADD else -by

    def _load(self, one: Instruction) -> None:
        size = self._size(one)
        address = self._value(one.source) + one.offset
        start = address - _CONTEXT
        if 0 <= start <= len(self.context) - size:
            self.registers[one.into] = int.from_bytes(self.context[start : start + size], "little")
            return
        cells = [self.stack.get(address + n) for n in range(size)]
        known = bytes([cell for cell in cells if cell is not None])
        if len(known) < size:
            raise self._unknown("loads what nobody stored")
        self.registers[one.into] = int.from_bytes(known, "little")

    def _store(self, one: Instruction, family: int) -> None:
        size = self._size(one)
        address = self._value(one.into) + one.offset
        if not _STACK - _STACK_SIZE <= address <= _STACK - size:
            raise self._unknown("stores outside of the stack")
        value = self._number(one.source) if family == STX else one.immediate
        for n in range(size):
            self.stack[address + n] = value >> 8 * n & 0xFF

    def _size(self, one: Instruction) -> int:
        if one.code & 0xE0 != _MEMORY:
            raise self._unknown(f"addressing mode {one.code & 0xE0:#x}")
        return _SIZES[one.code & 0x18]

    def _load_64(self, one: Instruction) -> None:
        if one.source or self.at >= len(self.program):
            raise self._unknown("refers to a map or a function")
        high = self.program[self.at].immediate & 0xFFFFFFFF
        self.registers[one.into] = high << 32 | one.immediate & 0xFFFFFFFF
        self.at += 1


_ADD, _SUB, _NEGATE, _XOR, _MOVE, _ARITHMETIC_SHIFT = 0x00, 0x10, 0x80, 0xA0, 0xB0, 0xC0
_SHIFT = {0x60: lambda a, b: a << b, 0x70: lambda a, b: a >> b}
_ARITHMETIC = {
    _ADD: lambda a, b: a + b,
    _SUB: lambda a, b: a - b,
    0x20: lambda a, b: a * b,
    0x30: lambda a, b: a // b if b else 0,
    0x40: lambda a, b: a | b,
    0x50: lambda a, b: a & b,
    _NEGATE: lambda a, b: -a,
    0x90: lambda a, b: a % b if b else a,
    _XOR: lambda a, b: a ^ b,
    _MOVE: lambda a, b: b,
}
_COMPARE = {
    0x10: lambda a, b: a == b,
    0x20: lambda a, b: a > b,
    0x30: lambda a, b: a >= b,
    0x40: lambda a, b: a & b,
    0x50: lambda a, b: a != b,
    0xA0: lambda a, b: a < b,
    0xB0: lambda a, b: a <= b,
}
# The signed comparisons, and what they are once both sides are signed numbers.
_SIGNED = {0x60: 0x20, 0x70: 0x30, 0xC0: 0xA0, 0xD0: 0xB0}


def _is_address(value: int) -> bool:
    return any(base - 2 * _STACK_SIZE <= value <= base + 2 * _STACK_SIZE for base in (_CONTEXT, _STACK))


def _signed(value: int, mask: int) -> int:
    return value - mask - 1 if value > mask >> 1 else value

"""Majors of a simulated node that a driver of the real machine has already: a container would open that driver."""

from pathlib import Path
from typing import Any

from tests.fakenode.descriptions import Node

# The names in /proc/devices, and the fields of Node that hold their numbers.
DYNAMIC = {
    "nvidia-caps": "caps_major",
    "nvidia-uvm": "uvm_major",
    "nvidia-caps-imex-channels": "imex_major",
}
STATIC = 195  # of GPUs and control nodes, whatever else the machine has


def real_majors() -> set[int]:
    """The character majors that a driver of this machine uses."""
    return majors_in(Path("/proc/devices").read_text())


def majors_in(text: str) -> set[int]:
    """The character majors in *text* of the form of /proc/devices."""
    lines = text.partition("Block devices:")[0].splitlines()
    return {int(line.split()[0]) for line in lines if line.strip()[:1].isdigit()}


def around(node: Node, avoid: set[int]) -> Node:
    """*node* with its dynamic majors moved off those in *avoid*, and off each other."""
    fixed = {getattr(node, field) for field in DYNAMIC.values()} | {STATIC}
    # Where the kernel itself looks for a free one (fs/char_dev.c, find_dynamic_major).
    free = (major for major in range(511, 383, -1) if major not in avoid | fixed)
    moves: dict[str, Any] = {field: next(free) for field in DYNAMIC.values() if getattr(node, field) in avoid}
    return node._replace(**moves)


def moved(was: Node, now: Node) -> list[str]:
    """A sentence for each major of *was* that is another one in *now*."""
    return [
        f"{name} is major {getattr(now, field)} here, not {getattr(was, field)}: a driver of this machine has that"
        for name, field in DYNAMIC.items()
        if getattr(was, field) != getattr(now, field)
    ]

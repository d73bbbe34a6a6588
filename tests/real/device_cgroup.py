"""A cgroup of v2 whose kernel can be asked, and what only tests do with bpf(2)."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpushim import linux
from gpushim_hooks.instructions import encode

if TYPE_CHECKING:
    from gpushim_hooks.instructions import Instruction
    from gpushim_hooks.rule import Question

# A child that joins the cgroup and asks: a node whose major has no driver opens with ENXIO where it is allowed.
ASKER = """
import json, os, stat, sys
cgroup, nodes, questions = json.load(sys.stdin)
with open(cgroup + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
os.umask(0)
flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}
answers = []
for type, major, minor, access in questions:
    try:
        if access == "m":
            path = nodes + "/made"
            os.mknod(path, (stat.S_IFCHR if type == "c" else stat.S_IFBLK) | 0o600, os.makedev(major, minor))
            os.unlink(path)
        else:
            os.close(os.open(f"{nodes}/{type}{major}.{minor}", flags[access] | os.O_NONBLOCK | os.O_NOCTTY))
        answers.append(True)
    except OSError as problem:
        answers.append(problem.errno != 1)
json.dump(answers, sys.stdout)
"""


class Cgroup:
    """The cgroup2 directory *path*, made where it is missing, and a descriptor of it."""

    def __init__(self, path: Path, nodes: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.nodes = nodes
        self.children: list[Cgroup] = []
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        for child in self.children:
            child.close()
        os.close(self.fd)

    def child(self, name: str) -> Cgroup:
        self.children.append(Cgroup(self.path / name, self.nodes))
        return self.children[-1]

    def attach(
        self, instructions: list[Instruction], name: str = "test", *, flags: int = linux.BPF_MULTI
    ) -> int:
        """The id of the program that is loaded from *instructions* and attached."""
        program = linux.load_program(encode(instructions), b"GPL", name)
        linux.attach_program(self.fd, program, flags)
        id = linux.program_info(program)[0]
        os.close(program)
        return id

    def detach(self, id: int) -> None:
        """Take the program *id* off (BPF_PROG_DETACH)."""
        program = linux.open_program(id)
        _bpf(9, self.fd, program, 6)
        os.close(program)

    def link(self, instructions: list[Instruction], name: str = "linked") -> int:
        """A descriptor of a link that holds such a program here (BPF_LINK_CREATE)."""
        program = linux.load_program(encode(instructions), b"GPL", name)
        link = _bpf(28, program, self.fd, 6, 0)
        os.close(program)
        return link

    def kernel(self, questions: list[Question]) -> list[bool]:
        """What the kernel answers a process in this cgroup."""
        self.make_nodes(questions)
        asked = json.dumps([str(self.path), str(self.nodes), questions])
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ASKER], input=asked, capture_output=True, text=True, check=True
        )
        answers: list[bool] = json.loads(done.stdout)
        return answers

    def make_nodes(self, questions: Iterable[Question]) -> None:
        for type, major, minor in {question[:3] for question in questions}:
            path = self.nodes / f"{type}{major}.{minor}"
            if not path.exists():
                kind = stat.S_IFCHR if type == "c" else stat.S_IFBLK
                os.mknod(path, kind | 0o600, os.makedev(major, minor))
                path.chmod(0o666)


def _bpf(command: int, *words: int) -> int:
    attr = (ctypes.c_uint32 * 32)(*words)
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    done: int = libc.syscall(number, command, ctypes.byref(attr), ctypes.sizeof(attr))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


# Numbers without a driver, or with one that an open does nothing to.
CHARACTER = [
    *[(1, minor) for minor in (1, 3, 5, 7, 8, 9)],
    *[(5, 0), (5, 2), (10, 200), (136, 0), (136, 7), (234, 0)],
    *[(195, 0), (195, 1), (195, 7), (195, 254), (195, 255)],
    *[(511, minor) for minor in (0, 1, 2, 3, 7, 8, 137, 138, 1080, 1081)],
    *[(510, 1), (512, 1), (511, (1 << 20) - 1), (0, 0)],
]
BLOCK = [(0, 0), (7, 300), (8, 0), (8, 1), (195, 255), (511, 1)]

GRID: list[Question] = [
    (type, major, minor, access)
    for type, places in (("c", CHARACTER), ("b", BLOCK))
    for major, minor in places
    for access in ("r", "w", "rw", "m")
]

"""`python -m tests.fakenode NAME DIRECTORY`: make a simulated node and say how to use it."""

import os
import shutil
import sys
from pathlib import Path

from tests.fakenode import NODES, build, moved, real_majors
from tests.fakenode.majors import STATIC


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in NODES:
        print(f"usage: python -m tests.fakenode NAME DIRECTORY\nnames: {', '.join(NODES)}", file=sys.stderr)
        return 2
    if shutil.which("gcc") is None:
        print("missing: gcc\nhint: as root on Debian: apt-get install gcc libc6-dev", file=sys.stderr)
        return 1
    name, directory = sys.argv[1], Path(sys.argv[2]).absolute()
    taken = real_majors()
    try:
        node = build(directory, name, avoid=taken)
    except OSError as problem:
        print(f"{problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1
    for sentence in moved(NODES[name], node):
        print(sentence)
    if node.driver and STATIC in taken:
        print(f"major {STATIC} is a real driver here: a container on this node opens the machine's own GPUs")
    if os.geteuid() != 0:
        print("not root: no device nodes were made, `gpushim node` shows them as missing")
    print(f"GPUSHIM_CONFIG={directory}/config.toml GPUSHIM_STATE={directory}/state gpushim node")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fakenode NAME DIRECTORY`: make a simulated node and say how to use it."""

import os
import sys
from pathlib import Path

from tests.fakenode import NODES, build


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in NODES:
        print(f"usage: python -m tests.fakenode NAME DIRECTORY\nnames: {', '.join(NODES)}", file=sys.stderr)
        return 2
    directory = Path(sys.argv[2]).absolute()
    build(directory, sys.argv[1])
    if os.geteuid() != 0:
        print("not root: no device nodes were made, `gpushim node` shows them as missing")
    print(f"GPUSHIM_CONFIG={directory}/config.toml GPUSHIM_STATE={directory}/state gpushim node")
    return 0


if __name__ == "__main__":
    sys.exit(main())

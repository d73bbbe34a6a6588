"""Where in a TOML text a key stands: the parser tells that for syntax errors only."""

import re

_HEADER = re.compile(r"^\s*\[\[?([^\]]+)\]")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_STEP = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, way: tuple[str, ...]) -> int:
    """The line, counted from 1, of the key at *way*: its own, or the nearest that leads there."""
    best, depth = 1, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = here = _steps(header.group(1))
        else:
            key = _KEY.match(line)
            if not key:
                continue
            here = table + _steps(key.group(1))
        shared = 0
        for one, other in zip(here, way, strict=False):
            if one != other:
                break
            shared += 1
        # A key whose own path goes on beyond *way* leads there as well: `[gpushim.policy]` to gpushim.
        if shared > depth and shared in (len(here), len(way)):
            best, depth = number, shared
    return best


def _steps(dotted: str) -> tuple[str, ...]:
    return tuple(step.strip("\"'") for step in _STEP.findall(dotted))

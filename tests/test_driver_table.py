"""docs/driver-files.md says what the code goes by; `UPDATE=1` writes it anew."""

import os
from pathlib import Path

from gpushim import driver_table
from gpushim.driver import SOCKETS
from gpushim.request import CAPABILITIES

PAGE = Path(__file__).parent.parent / "docs/driver-files.md"
MARK = "<!-- made from shim/gpushim/driver_table.py and driver.py; tests/test_driver_table.py -->\n"


def table() -> str:
    lines = ["| capability | libraries (`lib….so`) | programs | more |", "| --- | --- | --- | --- |"]
    for capability in CAPABILITIES:
        if capability == "compat32":
            lines.append("| compat32 | the 32-bit ones of the capabilities beside it | | |")
            continue
        libraries = [name for name, brings in driver_table.LIBRARIES.items() if capability in brings]
        programs = [name for name, brings in driver_table.BINARIES.items() if capability in brings]
        more = [path for path, brings in SOCKETS.items() if brings == capability]
        more += [name for name, brings in driver_table.CONFIGURATION.items() if capability in brings]
        cells = (", ".join(part) for part in (libraries, programs, more))
        lines.append(f"| {capability} | {' | '.join(cells)} |")
    others = ", ".join(driver_table.OTHERS)
    lines.append(f"| any of {others} | libraries of the driver's version that this table does not know | | |")
    lines.append("| any | | | GSP firmware |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table_that_the_code_goes_by() -> None:
    before, mark, _ = PAGE.read_text().partition(MARK)
    assert mark == MARK
    text = f"{before}{MARK}\n{table()}"
    if os.environ.get("UPDATE"):
        PAGE.write_text(text)

    assert PAGE.read_text() == text


def test_every_capability_is_one() -> None:
    tables = (driver_table.LIBRARIES, driver_table.BINARIES, driver_table.CONFIGURATION)
    named = {one for entries in tables for brings in entries.values() for one in brings}

    assert named | set(SOCKETS.values()) | set(driver_table.OTHERS) <= set(CAPABILITIES)

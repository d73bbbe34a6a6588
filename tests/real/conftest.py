"""One bed a cell, for all tests of the session."""

from pathlib import Path

import pytest

from tests.real.bed import CELLS, Bed, Cell, lacking

_beds: dict[Cell, Bed] = {}


@pytest.fixture(params=CELLS, ids=str)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """A bed in each cell that can be on this machine."""
    cell: Cell = request.param
    reason = lacking(cell)
    if reason:
        pytest.skip(f"{cell}: {reason}")
    if cell not in _beds:
        _beds[cell] = Bed(cell, Path(tmp_path_factory.mktemp(str(cell))))
    return _beds[cell]

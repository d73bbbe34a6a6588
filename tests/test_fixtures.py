"""Captured bundles: good ones are edited as expected, bad ones are refused with these words.

A folder below oci-fixtures adds a test. `UPDATE=1` writes what is there now, for a person to read before committing.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushim import edits
from gpushim.bundle import parse
from gpushim.errors import ShimError
from gpushim.resolution import resolve
from tests import fakenode
from tests.defaults import settings

FIXTURES = Path(__file__).parent.parent / "oci-fixtures"


def cases(kind: str) -> list[Path]:
    return sorted((FIXTURES / kind).iterdir())


def edited(case: Path, directory: Path) -> dict[str, Any]:
    name = (case / "node").read_text().strip() if (case / "node").exists() else "seed"
    fakenode.build(directory, name)
    values = settings()
    values |= {f"gpushim.roots.{root}": str(directory / root) for root in ("proc", "sys", "driver")}
    values["gpushim.roots.dev"] = str(directory)
    config = parse((case / "config.json").read_bytes(), "config.json")
    edits.apply(config, resolve(config, values, "runc", str(directory / "state")).edits)
    return config


@pytest.mark.parametrize("case", cases("good"), ids=lambda case: case.name)
def test_a_bundle_is_edited_as_expected(case: Path, tmp_path: Path) -> None:
    found = edited(case, tmp_path)

    if os.environ.get("UPDATE"):
        (case / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads((case / "expected.json").read_text())


@pytest.mark.parametrize("case", cases("bad"), ids=lambda case: case.name)
def test_a_bundle_is_refused_with_these_words(case: Path, tmp_path: Path) -> None:
    with pytest.raises(ShimError) as raised:
        edited(case, tmp_path)

    if os.environ.get("UPDATE"):
        (case / "error.txt").write_text(f"{raised.value}\n")
    assert f"{raised.value}\n" == (case / "error.txt").read_text()


def test_each_fixture_is_told_of() -> None:
    page = (FIXTURES / "README.md").read_text()

    assert [
        case.name for kind in ("good", "bad") for case in cases(kind) if f"`{case.name}`" not in page
    ] == []

"""The checks that read the code instead of running it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PYTHON = ["shim", "hooks", "tests"]
COLD = ["settings_file.py"]  # beside the hot modules of the package, but started only when settings are stale


def tool(*args: str) -> None:
    done = subprocess.run([sys.executable, "-m", *args], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_is_formatted() -> None:
    tool("ruff", "format", "--check", *PYTHON)


def test_python_has_no_lint() -> None:
    tool("ruff", "check", *PYTHON)


def test_python_is_typed() -> None:
    tool("mypy")


def imports(path: Path, *, everywhere: bool) -> set[str]:
    """The modules that *path* imports: at its top, or in its functions too; never those for type checkers."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def modules(*roots: str) -> list[Path]:
    return sorted(path for root in roots for path in (CHECKOUT / root).rglob("*.py"))


def test_only_linux_reaches_the_c_part() -> None:
    using = {
        p.name
        for p in modules("shim", "hooks")
        if any("_native" in name for name in imports(p, everywhere=True))
    }

    assert using == {"linux.py"}


def test_dependencies_run_one_way() -> None:
    for path in modules("shim"):
        assert (
            not any(name.startswith("gpushim_hooks") for name in imports(path, everywhere=True))
            or "ctl" in path.parts
        )
    for path in [p for p in modules("shim", "hooks") if "ctl" not in p.parts]:
        assert not any(name.startswith("gpushim.ctl") for name in imports(path, everywhere=True)), path


def test_only_edits_changes_a_config() -> None:
    """Assignments into, and mutating calls on, anything called config stand in edits.py alone."""
    pattern = re.compile(
        r"\bconfig(\[[^]]*\])+\s*=[^=]|\bconfig(\[[^]]*\])*\.(setdefault|pop|update|clear)\("
    )
    guilty = [
        p.name
        for p in modules("shim/gpushim", "hooks")
        if p.name != "edits.py" and pattern.search(p.read_text())
    ]

    assert guilty == []


def ids_in_code() -> list[str]:
    text = "".join(path.read_text() for path in modules("shim", "hooks"))
    text += "".join(path.read_text() for path in sorted((CHECKOUT / "cffi_src").glob("*.c")))
    return re.findall(r"GS\d{4}", text)


def test_each_error_id_is_raised_once() -> None:
    ids = ids_in_code()

    assert sorted({one for one in ids if ids.count(one) > 1}) == []


def test_each_error_id_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| (GS\d{4}) \|", (CHECKOUT / "docs/errors.md").read_text(), re.MULTILINE)

    assert documented == sorted(set(ids_in_code()))


@pytest.mark.parametrize(
    "path", [p for p in modules("shim", "hooks") if p.name != "__init__.py"], ids=lambda p: p.name
)
def test_files_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_packages_export_nothing_from_their_init() -> None:
    for path in modules("shim", "hooks"):
        if path.name == "__init__.py":
            assert imports(path, everywhere=True) == set(), path


def test_the_first_line_of_a_docstring_stands_alone() -> None:
    """It is what help() and an index show."""
    for path in modules("shim", "hooks", "tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                lines = (ast.get_docstring(node) or "").splitlines()
                assert len(lines) < 2 or lines[1] == "", f"{path}: {lines[:2]}"

"""gpushim.settings: config.toml in its compiled form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushim import settings

Environ = dict[bytes, bytes]


@pytest.fixture
def environ(tmp_path: Path) -> Environ:
    (tmp_path / "config.toml").write_text('[gpushim.policy]\nmig-monitor = "allow"\n')
    return {
        b"GPUSHIM_CONFIG": os.fsencode(tmp_path / "config.toml"),
        b"GPUSHIM_STATE": os.fsencode(tmp_path / "state"),
    }


KEY = "gpushim.policy.mig-monitor"


def test_a_second_load_reads_the_compiled_form(environ: Environ, tmp_path: Path) -> None:
    first = settings.load(environ)
    program = f"""
import os, sys
from gpushim import settings
values = settings.load({environ!r})
assert values[{KEY!r}] == "allow"
assert "tomlkit" not in sys.modules and "gpushim.settings_file" not in sys.modules
"""

    subprocess.run([sys.executable, "-c", program], check=True)
    assert settings.load(environ) == first
    (kept,) = (tmp_path / "state").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_an_edit_counts_at_once(environ: Environ, tmp_path: Path) -> None:
    settings.load(environ)
    (tmp_path / "config.toml").write_text('[gpushim.policy]\nmig-monitor = "deny"\n')

    assert settings.load(environ)[KEY] == "deny"


def test_a_directory_that_others_can_write_is_neither_read_nor_written(
    environ: Environ, tmp_path: Path
) -> None:
    settings.load(environ)
    (tmp_path / "state").chmod(0o777)
    (kept,) = (tmp_path / "state").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b'"allow"', b'"deny" '))
    before = kept.read_bytes()

    assert settings.load(environ)[KEY] == "allow"
    assert not settings.refresh(environ)
    assert kept.read_bytes() == before


def test_the_last_settings_are_there_when_the_file_is_broken(environ: Environ, tmp_path: Path) -> None:
    assert settings.last(environ)[KEY] == "sys-admin"
    settings.load(environ)
    (tmp_path / "config.toml").write_text("[")

    assert settings.last(environ)[KEY] == "allow"


def test_nonsense_in_the_compiled_file_is_made_anew(environ: Environ, tmp_path: Path) -> None:
    settings.load(environ)
    (kept,) = (tmp_path / "state").iterdir()
    for data in (b"", b"\0" * 10, kept.read_bytes()[:-20], kept.read_bytes().replace(b"json={", b"json=[")):
        kept.write_bytes(data)
        assert settings.load(environ)[KEY] == "allow"


@pytest.mark.parametrize(
    ("variables", "path", "variable"),
    [
        ({b"GPUSHIM_CONFIG": b"/a", b"NVIDIA_CTK_CONFIG_FILE_PATH": b"/b"}, "/a", "GPUSHIM_CONFIG"),
        (
            {b"GPUSHIM_CONFIG": b"", b"NVIDIA_CTK_CONFIG_FILE_PATH": b"/b"},
            "/b",
            "NVIDIA_CTK_CONFIG_FILE_PATH",
        ),
    ],
)
def test_which_file_counts(variables: Environ, path: str, variable: str) -> None:
    selected = settings.select(variables)

    assert (selected.path, selected.variable) == (path, variable)


def test_a_file_that_cannot_be_looked_at_counts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the administrator wrote is not passed over for the next file, or for the defaults."""
    loop, there, absent = tmp_path / "loop", tmp_path / "there", tmp_path / "absent"
    loop.symlink_to(loop)
    there.touch()

    for files, expected in (((loop, there), loop), ((absent, there), there), ((absent, there / "x"), None)):
        monkeypatch.setattr(settings, "FILES", tuple(map(str, files)))
        assert settings.select({}).path == (str(expected) if expected else "")


def test_where_state_is_kept() -> None:
    assert settings.state_dir({b"GPUSHIM_STATE": b"/s"}) == "/s"
    expected = "/run/gpushim" if os.geteuid() == 0 else "/r/gpushim"
    assert settings.state_dir({b"XDG_RUNTIME_DIR": b"/r"}) == expected


def test_many_loads_at_once_from_an_empty_state(environ: Environ, tmp_path: Path) -> None:
    program = f"from gpushim import settings; assert settings.load({environ!r})[{KEY!r}] == 'allow'"

    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(20)]

    assert {process.wait() for process in started} == {0}
    assert len(list((tmp_path / "state").iterdir())) == 1

"""config.toml as text that is edited in place: comments, order and spelling stay."""

import codecs
import os
import tempfile
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from gpushim import files, settings, settings_file
from gpushim.errors import InvalidSettings, shown
from gpushim.settings_file import RULES, RUNTIMES
from gpushim.settings_schema import BY_NAME


class ConfigFile:
    """One config.toml, the one in effect where no path is given; a file that is not there is made."""

    def __init__(self, path: str | None) -> None:
        selected = settings.select(dict(os.environb)).path or settings.FILES[0]
        # A link stays one: what is written is the file it leads to.
        self.path = os.path.realpath(path or selected)
        # What is broken is told before it is touched, and so is what is no file: a link that leads to itself.
        there = os.path.lexists(self.path)
        settings_file.effective(self.path if there else "")
        data = Path(self.path).read_bytes() if there else b""
        self._mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        text = data.removeprefix(self._mark).decode()
        # tomlkit keeps the line ends of what it leaves alone, and ends the lines it makes in its own way.
        self._windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        self._document = tomlkit.parse(text.replace("\r\n", "\n") if self._windows else text)

    def set(self, key: str, value: str) -> None:
        """Give *key* the TOML *value*, or the text where it is none."""
        if key not in BY_NAME and not key.startswith(RUNTIMES + "."):
            hint = f"edit {RULES} in the file" if key == RULES else "gpushim config show lists the keys"
            raise InvalidSettings("GS0804", f"unknown key {key!r}", hint=hint)
        try:
            value.encode()
        except UnicodeEncodeError as problem:
            raise InvalidSettings("GS0807", f"{key}: {shown(value)} is not UTF-8") from problem
        table: Any = self._document
        *way, name = key.split(".")
        for step in way:
            if step not in table:
                table[step] = _new_table(table, step == way[-1])
            table = table[step]
            if not isinstance(table, dict):
                raise InvalidSettings("GS0808", f"{self.path}: {key}: {step} is no table")
        known = BY_NAME.get(key)
        table[name] = value if known and known.type is str else _parsed(value)

    def unset(self, key: str) -> None:
        """Take *key* out."""
        table: Any = self._document
        *way, name = key.split(".")
        for step in way:
            table = table.get(step) if isinstance(table, dict) else None
        if not isinstance(table, dict) or name not in table:
            raise InvalidSettings(
                "GS0805", f"{self.path}: has no key {key!r}", hint="gpushim config show --changed"
            )
        del table[name]

    def shown(self, key: str) -> str:
        """The value of *key* as it stands in the file."""
        item: Any = self._document
        for step in key.split("."):
            item = item[step]
        return str(item.as_string()) if hasattr(item, "as_string") else repr(item)

    def write(self) -> None:
        """Replace the file at once, if the new text is one that is accepted."""
        text = tomlkit.dumps(self._document)
        data = self._mark + (text.replace("\n", "\r\n") if self._windows else text).encode()
        with tempfile.NamedTemporaryFile(suffix=".toml") as trial:
            trial.write(data)
            trial.flush()
            try:
                settings_file.effective(trial.name)
            except InvalidSettings as problem:
                told = problem.args[0].replace(trial.name, self.path)
                raise InvalidSettings(
                    "GS0806", f"{told}; nothing was changed", hint=problem.hint
                ) from problem
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        like = os.stat(self.path) if os.path.exists(self.path) else None
        files.replace(self.path, data, like.st_mode & 0o7777 if like else 0o644, like)


def _new_table(parent: Any, last: bool) -> Any:
    if isinstance(parent, InlineTable):  # it holds no other kind
        return tomlkit.inline_table()
    return tomlkit.table(is_super_table=not last)


def _parsed(value: str) -> Any:
    try:
        return tomlkit.value(value)
    except (TOMLKitError, ValueError):
        return value

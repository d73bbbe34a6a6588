"""The settings of a node without a config.toml, for tests that change one or two."""

from typing import Any

from gpushim import settings_file


def settings(**changes: Any) -> dict[str, Any]:
    """The defaults with *changes*: `gpushim_policy__mig_monitor="allow"` sets gpushim.policy.mig-monitor."""
    values = settings_file.defaults()
    for name, value in changes.items():
        key = name.replace("__", ".").replace("_", "-")
        assert key in values, key
        values[key] = value
    return values

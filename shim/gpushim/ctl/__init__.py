"""The `gpushim` command."""

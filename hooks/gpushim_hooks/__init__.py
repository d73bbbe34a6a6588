"""gpushim as an OCI hook."""

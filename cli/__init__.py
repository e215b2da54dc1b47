"""The `packidx` command; installed as the package `packidx_cli`."""

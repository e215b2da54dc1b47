"""`packidx export` and its kinds."""

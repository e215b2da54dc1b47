"""The prompt of `packidx sql`, and queries one after another."""

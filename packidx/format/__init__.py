"""What stands on disk, as FORMAT.md has it."""

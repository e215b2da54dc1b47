"""What a record refers to."""

"""The media that a record refers to."""

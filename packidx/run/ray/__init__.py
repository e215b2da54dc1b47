"""Work as tasks of Ray."""

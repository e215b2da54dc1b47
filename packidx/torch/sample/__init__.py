"""One sample, made to fit its plan."""

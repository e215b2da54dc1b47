"""Who does the work: how many processes, and where."""

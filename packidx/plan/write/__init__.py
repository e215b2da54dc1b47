"""A plan as the rows of its tables, and as its result."""

"""How good a plan is, in numbers."""

"""What a plan is told: the options, read and resolved."""

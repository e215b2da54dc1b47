"""From arguments to shards."""

"""Raw records as Conversations."""

"""WebDataset tars."""

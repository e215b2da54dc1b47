"""Where the trained turns are in a rendering."""

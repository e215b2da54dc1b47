"""Code that the user brings: an encoder, a transform."""

"""`packidx doctor`: what is here, whether an index can be read here, and how quickly."""

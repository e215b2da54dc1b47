"""Files here and in object stores."""

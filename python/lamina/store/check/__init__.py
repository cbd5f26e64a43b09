"""Whether the retained versions of a store are whole."""

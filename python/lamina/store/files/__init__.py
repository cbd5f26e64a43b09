"""Where the bytes of an attempt are, and reading them verified."""

"""How a version comes to a caller: plans, the stream of entries, ways around what is broken."""

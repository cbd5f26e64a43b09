"""Which attempt a version is, and which references make it."""

"""Many stores at once: whether small commits, far storages and maintenance meet their bars; a question is a module."""

"""How a base is made from increments: what is worth a merge, merging, and segments that wait for a commit."""

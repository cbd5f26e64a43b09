"""How an attempt becomes durable."""

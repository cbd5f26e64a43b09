"""The engine process: keeps the durable side of every store of one executor JVM, and serves it over the wire."""

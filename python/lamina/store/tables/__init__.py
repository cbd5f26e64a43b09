"""Sorted tables: a base of a version as a database of RocksDB. Its files on local disk, its entries, its jobs."""

"""The bound of bytes that restores and uploads share."""

"""What may be deleted: retention, the registry of files, collections."""

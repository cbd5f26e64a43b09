"""What tools do to all stores of a checkpoint beside its query: survey, check, collect."""

"""The one loop, its checkpoints, restarts, ranks and doctor."""

"""The shell: each command is a few lines over the public API."""

"""How to get a posterior: one method, one file."""

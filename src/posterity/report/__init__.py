"""Pictures, tables and the page: takes results, never models."""

"""Results made visible: plots, tables, the page; takes results, never models."""

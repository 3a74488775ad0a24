"""Optimizers, their pure update rules, and schedules."""

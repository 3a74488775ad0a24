"""Thin bridges to other libraries; each needs that library to be installed."""

"""Traces: what a program allocated, when, and for how long."""

"""Thin adapters to tools of others; each imports its tool."""

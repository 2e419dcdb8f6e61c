"""Plots as SVG and PNG: for pages, terminals' users and talks."""

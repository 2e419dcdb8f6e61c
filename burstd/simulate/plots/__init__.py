"""Plots as SVG, written by hand: no library, no script, readable without colours."""

"""Brings about what the controller decided: transfers, delivery of output, removal."""

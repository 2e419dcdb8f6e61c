"""The pure core: values in, values out. No clock, no I/O, no plug-in imports."""

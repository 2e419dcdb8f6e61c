"""Container images of registries: what a reference means, and the worker that converts one into a file."""

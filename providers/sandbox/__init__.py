"""A cloud on this machine: boxes (hosts made of namespaces), a small cloud server over them, and its provider."""

"""A real Kubernetes for tests: its control plane, nodes without containers, and a node with them."""

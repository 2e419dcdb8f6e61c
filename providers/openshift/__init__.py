"""OpenShift and plain Kubernetes. provider.py puts it together; calls.py is the only maker of connections."""

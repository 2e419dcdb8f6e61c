"""From a request to a virtual machine."""

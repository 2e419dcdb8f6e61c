"""The control interface: HTTP on a unix socket; the caller is who the kernel says."""

"""How a box starts: its process 1, the boot script, cloud-init."""

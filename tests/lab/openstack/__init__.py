"""A real OpenStack on this machine, but for its hypervisor: ``plane.ControlPlane`` starts one."""

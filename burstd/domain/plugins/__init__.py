"""The interfaces of plug-ins: providers, policies, stagers, the scheduler, ways into machines."""

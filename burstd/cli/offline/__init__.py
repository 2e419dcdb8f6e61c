"""Commands of burstctl that read the settings or files themselves; the daemon need not run."""

"""What the process itself needs: clock, threads, sockets, logs, systemd."""

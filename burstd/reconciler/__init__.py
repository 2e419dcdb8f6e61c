"""The loop's steps: observe, decide, execute."""

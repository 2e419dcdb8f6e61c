"""The agent on a node: input placed, output collected."""

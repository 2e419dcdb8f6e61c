"""The contract suites that plug-ins must pass. Shipped, so that third parties can test theirs; they need pytest."""

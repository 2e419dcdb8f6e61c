"""The page: HTML for a browser, made of what the control interface answers."""

"""Users' trees of the site, live on the nodes on which they have jobs."""

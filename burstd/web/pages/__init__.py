"""A file for each page, or for a few that are alike: its route, and what its template needs."""

"""One file for each change of the schema; never altered once released."""

"""Root file systems of boxes, and cached layers over them."""

"""Files of users into objects, and back."""

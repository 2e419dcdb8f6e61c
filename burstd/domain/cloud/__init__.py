"""The clouds' nouns: instances and offers, and the bounds of what clouds may say."""

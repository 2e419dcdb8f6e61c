"""The store on a storage node that is reached by ssh."""

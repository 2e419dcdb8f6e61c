"""The store that is a PersistentVolumeClaim which burst pods mount."""

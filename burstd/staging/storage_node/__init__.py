"""The storage node that burstd launches for its store."""

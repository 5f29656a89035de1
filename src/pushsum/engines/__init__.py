"""Where the nodes live: the simulator plays all of them in one process."""

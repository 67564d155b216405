"""Workers in processes of this machine, forked by a server, with arrays in shared memory."""

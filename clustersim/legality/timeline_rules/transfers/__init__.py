"""Rules on transfers: sends between stages, K/V between ranks, pools and host memory."""

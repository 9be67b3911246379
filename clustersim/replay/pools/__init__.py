"""Two pools: requests and their K/V entries on the way from prefill replicas to decode replicas."""

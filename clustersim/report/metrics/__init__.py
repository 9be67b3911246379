"""What is measured of a run: latencies, rates, use of devices and links, energy and cost."""

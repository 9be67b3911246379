"""What no plan exceeds: the least times of its steps, and the most requests per second, proven from the cost model"""

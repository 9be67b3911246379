"""Runs side by side: what differs in their scenarios, figures and requests, and where each millisecond comes from."""

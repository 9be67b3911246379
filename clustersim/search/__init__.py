"""Many runs: executors of ``concurrent.futures`` to spread them over, and what is asked of them."""

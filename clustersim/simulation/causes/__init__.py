"""Where the time of each request went: what it waited for, and what it got."""

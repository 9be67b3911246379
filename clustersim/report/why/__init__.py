"""What lifting one limit at a time would give: a tornado of gains and a table on one page."""

"""The figures of the dashboard: each from a run and its options to what plotly draws."""

"""Logs of servers, which engines are calibrated with."""

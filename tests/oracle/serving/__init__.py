"""Schedulers and routers."""

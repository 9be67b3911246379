"""Pools of plans: which replicas stand for all, and what is known of each pool by itself"""

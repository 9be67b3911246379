"""Recorded traces: the formats of their files, how one is told from another, and how each is read"""

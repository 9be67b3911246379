"""The page of a sweep: curves, heat map, parallel coordinates and a table over many runs"""

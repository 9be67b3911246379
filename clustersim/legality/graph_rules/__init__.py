"""The rules of level G, one module per family; each is a pure function of a :class:`GraphView`."""

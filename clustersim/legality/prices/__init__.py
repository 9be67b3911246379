"""What operators and collectives cost, worked out anew from what was declared: the second opinion of rule RUN-2.

Everything follows from the model, the plan, the number formats, the device, the engine, the topology, the table of
measured points and the contents of a step, by the documented formulas. Nothing here is called by a replay, and nothing
that a replay prices with is called here (``tests/legality/timeline/test_price_independence.py``).
"""

"""Published serving figures against what the simulator predicts of them, point by point.

``clustersim accuracy TABLE`` reads a table of measured points (columns in :mod:`.row`), turns each row into a scenario
(one module per group of families), simulates it and compares. The tables are not part of the project; what came
out for them is (``scenarios/accuracy``), and the figures of the comparison are whatever comes out.

A point without a prediction has a reason: a part that no catalog has, a workload that the row does not give, a
feature that is not simulated. Rows leave much unsaid (batch limits, number of requests, engine constants); what is
taken instead stands in :mod:`.systems` and in the modules of the families, and is the default of the software
that was measured, or the nearest thing in the catalogs.
"""

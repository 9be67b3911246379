"""What rules of level G read: the dataflow of a graph, who comes before whom, and what each rank should have."""

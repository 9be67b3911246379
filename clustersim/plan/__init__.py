"""The parallel plan: degrees, stage cuts, token segments, the mesh of ranks and what a rank keeps in memory."""

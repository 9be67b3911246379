"""The best legal plan: enumeration, bounds that are proven, screening in their order, and the certificate."""

"""What each kind of operator does with numbers: dense layers, attention, the K/V cache, experts, collectives."""

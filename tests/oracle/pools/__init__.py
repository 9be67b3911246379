"""K/V on its way between pools."""
